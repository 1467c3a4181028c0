"""Parses small bodies on the event loop and larger ones in a thread, so that other requests are not delayed."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from slipstream_core.types import GenerationRequest

from slipstream_gateway.api.overrides import RequestOverrides
from slipstream_gateway.api.request import Parse

ON_LOOP_BYTES = 32 * 1024
"""Bodies up to this size, nearly all, are parsed on the event loop: the hand-over to a thread would cost more."""


class BodyParser:
    """Calls `parse`, in a thread of `threads` for bodies of more than `ON_LOOP_BYTES`. Raises the errors of `parse`."""

    def __init__(self, parse: Parse, threads: Executor) -> None:
        self._parse = parse
        self._threads = threads

    async def __call__(self, raw: bytes, overrides: RequestOverrides) -> GenerationRequest:
        if len(raw) <= ON_LOOP_BYTES:
            return self._parse(raw, overrides)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._parse, raw, overrides)
