"""How much one worker takes on: a bounded number in flight, a bounded queue, and a plain no beyond."""

from __future__ import annotations

import asyncio
from collections import deque

from slipstream_gateway.errors import Overloaded


class Admission:
    """Counts requests in flight. Those that wait are let in first come, first served."""

    def __init__(self, *, max_in_flight: int, max_queued: int, queue_timeout_s: float) -> None:
        self.in_flight = 0
        self._max_in_flight = max_in_flight
        self._max_queued = max_queued
        self._queue_timeout_s = queue_timeout_s
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    def try_enter(self) -> bool:
        """Takes a place if one is free, at no cost; else `enter` waits for one."""
        if self.in_flight >= self._max_in_flight:
            return False
        self.in_flight += 1
        return True

    async def enter(self) -> None:
        """Waits for a place. Raises `Overloaded` where the queue is full or the wait too long."""
        if len(self._queue) >= self._max_queued:
            raise Overloaded("Too many requests are in flight and in the queue.")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await place
        except TimeoutError as exc:
            self._give_up(place)
            raise Overloaded(f"No place became free within {self._queue_timeout_s:g} s.") from exc
        except asyncio.CancelledError:
            self._give_up(place)
            raise

    def leave(self) -> None:
        """Gives the place back, or on to the first that waits."""
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.in_flight -= 1

    def _give_up(self, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self.leave()  # the place came in the same moment: hand it on
        elif place in self._queue:
            self._queue.remove(place)
