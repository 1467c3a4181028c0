"""The chunks of a call's sequences, from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from types import TracebackType
from typing import Protocol

from slipstream_engine.contract.protocol import OnChunk
from slipstream_engine.contract.types import Chunk, GenerationRequest
from slipstream_engine.errors import RequestError
from slipstream_engine.openai.request.calls import Call


class Submits(Protocol):
    """The part of `EngineService` that a generation uses."""

    def submit(self, request: GenerationRequest, on_chunk: OnChunk, *, stops: int | None = None) -> None: ...

    def cancel(self, request_id: str) -> None: ...


class Generation:
    """The running sequences of `call`. Leaving the context cancels those that have not ended.

    The engine's thread appends chunks and wakes the event loop once, however many arrive before the loop reads them.
    """

    def __init__(self, engine: Submits, call: Call, *, stops: int) -> None:
        self._engine, self._call, self._stops = engine, call, stops
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[tuple[int, Chunk]] = deque()
        self._wake = asyncio.Event()
        self._signalled = False
        self._open: set[int] = set()

    def submit(self) -> None:
        """Submit the sequences. `stops` is the engine's number of `stop_drafting` calls when the call arrived.

        Raises:
            EngineError: the engine refuses one of them.
        """
        for index, request in enumerate(self._call.requests):
            try:
                self._engine.submit(request, partial(self._take, index), stops=self._stops)
            except RequestError as exc:
                if len(self._call.requests) > self._call.choices:  # several prompts
                    exc.prompt = index // self._call.choices
                raise
            self._open.add(index)

    async def next(self) -> list[tuple[int, Chunk]]:
        """The chunks since the last call, with the numbers of their sequences; at least one. Empty after the end."""
        while not (found := self._taken()) and self._open:
            await self._wake.wait()
            self._wake.clear()
        self._open.difference_update(index for index, chunk in found if chunk.last)
        return found

    def _taken(self) -> list[tuple[int, Chunk]]:
        self._signalled = False  # before each look, also one that finds nothing: a later chunk wakes the loop again
        found = []
        while self._arrived:
            found.append(self._arrived.popleft())
        return found

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for index in self._open:
            self._engine.cancel(self._call.requests[index].request_id)

    def _take(self, index: int, chunk: Chunk) -> None:
        self._arrived.append((index, chunk))
        if not self._signalled:
            self._signalled = True
            self._loop.call_soon_threadsafe(self._wake.set)
