"""Work in one thread, in which the API keys take turns: one key's large bodies delay another's by one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

from slipstream_core.types import Priority

from slipstream_gateway.admission.fair_queue import FairQueue

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Calls functions in `threads`, one at a time."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._is_busy = False
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def run(self, key: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `call` on behalf of `key`."""
        loop = asyncio.get_running_loop()
        if self._is_busy:
            await self._turn(key, loop.create_future())
        self._is_busy = True
        try:
            return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))
        finally:
            self._end()

    async def _turn(self, key: str, turn: asyncio.Future[None]) -> None:
        entry = self._waiting.push(turn, priority=Priority.NORMAL, key=key)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.discard(entry)
            else:  # its turn came at the same moment
                self._end()
            raise

    def _end(self) -> None:
        turn = self._waiting.pop()
        while turn is not None and turn.done():
            turn = self._waiting.pop()
        self._is_busy = turn is not None
        if turn is not None:
            turn.set_result(None)
