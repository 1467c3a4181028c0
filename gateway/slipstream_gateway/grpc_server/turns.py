"""The share of the event loop that the connections of one worker get."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

FRAMES_PER_TURN = 64
"""The frames that all connections together handle before other tasks run: about a millisecond."""


class Reader(Protocol):
    def read_on(self) -> None:
        """Handles frames that have arrived; joins the queue again if the turn ends before the frames do."""
        ...


class Turns:
    """Divides each turn of the event loop among the connections, in the order in which they ran out of it."""

    def __init__(self) -> None:
        self._left = FRAMES_PER_TURN
        self._queue: deque[Reader] = deque()
        self._is_scheduled = False

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def spend(self, frames: int) -> None:
        """Counts work that costs as much as `frames` small frames."""
        self._left -= frames
        self._schedule()

    def wait(self, reader: Reader) -> None:
        """Lets `reader` read on in a later turn."""
        self._queue.append(reader)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        self._left = FRAMES_PER_TURN
        waiting = len(self._queue)
        while waiting and not self.is_over:
            waiting -= 1
            self._queue.popleft().read_on()
        if self._queue:
            self._schedule()
