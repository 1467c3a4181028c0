"""The work queue: each key is processed by one worker at a time; an event meanwhile queues it once more."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from typing import Generic, TypeVar

Key = TypeVar("Key")

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 300.0
_JITTER = 0.2
_MOST_STALE = 64


class WorkQueue(Generic[Key]):
    """A queue of keys without repetition, for several workers in one event loop."""

    def __init__(self, *, first_retry_s: float = FIRST_RETRY_S, longest_retry_s: float = LONGEST_RETRY_S) -> None:
        self._first_retry_s, self._longest_retry_s = first_retry_s, longest_retry_s
        self._ready: deque[Key] = deque()
        self._waiting: set[Key] = set()
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._due: dict[Key, float] = {}
        self._timeline: list[tuple[float, int, Key]] = []
        self._entries = 0
        self._wake: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """The number of waiting keys."""
        return len(self._ready)

    @property
    def working(self) -> int:
        return len(self._working)

    @property
    def failing(self) -> int:
        """The number of keys whose last attempt failed."""
        return len(self._failures)

    def add(self, key: Key) -> None:
        """Queue `key`. A key that is being processed is queued again afterwards."""
        self._due.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wake_one()

    def schedule(self, key: Key, after_s: float) -> None:
        """Queue `key` in `after_s` seconds, in place of any earlier schedule."""
        at = asyncio.get_running_loop().time() + max(0.0, after_s)
        self._due[key] = at
        self._entries += 1
        heapq.heappush(self._timeline, (at, self._entries, key))
        if len(self._timeline) > 2 * len(self._due) + _MOST_STALE:
            self._drop_stale()

    def add_due(self) -> int:
        """Queue the keys that are due. Returns their number."""
        now, found = asyncio.get_running_loop().time(), 0
        while self._timeline and self._timeline[0][0] <= now:
            at, _, key = heapq.heappop(self._timeline)
            if self._due.get(key) == at:
                self.add(key)
                found += 1
        return found

    async def get(self) -> Key:
        """The next key; the caller must call `done` or `failed` with it."""
        while not self._ready:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._wake.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # another worker takes this worker's turn
                raise
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: Key) -> None:
        self._failures.pop(key, None)
        self._finish(key)

    def failed(self, key: Key, *, retry_after_s: float | None = None) -> float:
        """Retry `key` later, each time after twice the pause. Returns the pause in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause_s = min(self._longest_retry_s, self._first_retry_s * 2.0 ** min(failures - 1, 30))
        pause_s = max(pause_s * random.uniform(1 - _JITTER, 1 + _JITTER), retry_after_s or 0.0)
        self._finish(key)
        if key not in self._waiting:
            self.schedule(key, pause_s)
        return pause_s

    def forget(self, key: Key) -> None:
        """Drop the schedule and the failures of `key`, which no longer exists."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    def _drop_stale(self) -> None:
        """Remove replaced entries, which would stay in the timeline until they are due, perhaps for days."""
        self._timeline = [entry for entry in self._timeline if self._due.get(entry[2]) == entry[0]]
        heapq.heapify(self._timeline)

    def _finish(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _wake_one(self) -> None:
        while self._wake:
            waiter = self._wake.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
