"""Where a body is parsed: small ones on the event loop, larger ones in a thread, so that other requests go on."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from slipstream_core.types import GenerationRequest

from slipstream_gateway.api.overrides import RequestOverrides
from slipstream_gateway.api.request import Parse

ON_LOOP_BYTES = 32 * 1024
"""Bodies up to this size are parsed at once: nearly all, and a thread costs more than they do."""


class BodyParser:
    """Calls `parse`, for bodies of more than `ON_LOOP_BYTES` in a thread of `threads`. Raises what `parse` raises."""

    def __init__(self, parse: Parse, threads: Executor) -> None:
        self._parse = parse
        self._threads = threads

    async def __call__(self, raw: bytes, overrides: RequestOverrides) -> GenerationRequest:
        if len(raw) <= ON_LOOP_BYTES:
            return self._parse(raw, overrides)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._parse, raw, overrides)
