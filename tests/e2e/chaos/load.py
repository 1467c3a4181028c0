"""Steady mixed load from a thread of its own, so that faults can be played from the main one (see `Child`).

Bounded by its number of clients: each asks, reads its answer to the end, and asks again. Connecting is tried again for
a while, as behind any load balancer; a request that got through to a server is sent once.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

import uvloop
from slipstream_tools.bench.transport import HttpTransport, Recording

from tests.e2e.chaos.answers import Answer, fetch
from tests.e2e.chaos.asks import Ask
from tests.support.polling import eventually

ANSWER_LIMIT_S = 120.0  # far beyond what an answer takes here: who waits longer hangs
_STARTED_CHUNKS = 3  # the role, and text after it: bytes are with the client
_REACHED_S = 120.0


class LoadError(AssertionError):
    """The load did not come into the state that a fault needs."""


class Load:
    """`clients` at once, from `with` until its end; then `answers` has everything that was asked, and `turned` says how
    often a client that was refused a connection went to another of `urls`."""

    def __init__(
        self,
        urls: Sequence[str],
        asks: Sequence[Ask],
        *,
        clients: int,
        limit_s: float = ANSWER_LIMIT_S,
        rate_per_s: float | None = None,
    ) -> None:
        """`rate_per_s` None: every client asks as soon as it has its answer. Otherwise a request comes at that rate,
        evenly, and `late` counts those that found no client free in time."""
        self.answers: list[Answer] = []
        self.late = 0
        self._rate_per_s = rate_per_s
        self._due_s = 0.0
        self._urls, self._clients, self._limit_s = urls, clients, limit_s
        self._asks = itertools.cycle(asks)
        self._over = threading.Event()
        self.turned = 0
        self._running: dict[Recording, Ask] = {}
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()), name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Every answer that has begun comes to its end, or to the client's limit."""
        self._over.set()
        self._thread.join(self._limit_s + 10)
        if self._thread.is_alive():
            raise LoadError("the load does not end")

    def streaming(self) -> int:
        """How many streams are in the middle: their client has got text and waits for more."""
        running = tuple(self._running.items())
        return sum(len(recording.chunks) >= _STARTED_CHUNKS for recording, ask in running if ask.streams)

    def wait(self, reached: Callable[[], bool], what: str, *, within_s: float = _REACHED_S) -> None:
        eventually(reached, what, within_s=within_s)

    def wait_streaming(self, count: int = 2) -> None:
        self.wait(lambda: self.streaming() >= count, f"{count} streams in the middle")

    def wait_answers(self, more: int, *, within_s: float = _REACHED_S) -> None:
        """Until `more` further answers have come."""
        goal = len(self.answers) + more
        self.wait(lambda: len(self.answers) >= goal, f"{more} more answers", within_s=within_s)

    async def _run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self._clients)))

    async def _client(self, number: int) -> None:
        urls = [self._urls[(number + offset) % len(self._urls)] for offset in range(len(self._urls))]
        transports = [HttpTransport(url, {}) for url in urls]
        try:
            while not self._over.is_set():
                await self._due()
                await self._one(transports, next(self._asks))
        finally:
            for transport in transports:
                await transport.close()

    async def _due(self) -> None:
        """Wait for this request's moment."""
        if self._rate_per_s is None:
            return
        now_s = time.monotonic()
        self._due_s = max(self._due_s or now_s, now_s - 1.0) + 1.0 / self._rate_per_s
        wait_s = self._due_s - now_s
        self.late += wait_s < 0
        await asyncio.sleep(max(0.0, wait_s))

    async def _one(self, transports: list[HttpTransport], ask: Ask) -> None:
        """Ask the first of `transports` that takes a connection; it stays the first for the next request."""
        for turn in range(len(transports)):
            recording = Recording()
            self._running[recording] = ask
            try:
                answer = await fetch(transports[0], ask, recording, limit_s=self._limit_s)
            finally:
                del self._running[recording]
            if not answer.unreached or turn + 1 == len(transports):
                self.answers.append(answer)
                return
            transports.append(transports.pop(0))
            self.turned += 1


def ask_all(url: str, asks: Sequence[Ask], *, at_once: int = 1, limit_s: float = ANSWER_LIMIT_S) -> list[Answer]:
    """Every one of `asks` once, in their order."""

    async def run() -> list[Answer]:
        room = asyncio.Semaphore(at_once)
        transport = HttpTransport(url, {})

        async def one(ask: Ask) -> Answer:
            async with room:
                return await fetch(transport, ask, Recording(), limit_s=limit_s)

        try:
            return list(await asyncio.gather(*(one(ask) for ask in asks)))
        finally:
            await transport.close()

    return uvloop.run(run())
