"""A queue by priority, with start-time fair queueing between the keys of each priority, in O(log n).

In virtual time, an entry starts at the end of the previous entry of its key or at the queue's present time, whichever
is later. The entry with the earliest start is next. So keys take turns, however many requests each key sends. If the
queue is full, the newest entry of the longest line of the lowest priority is dropped.

Goyal, Vin, Cheng: Start-time Fair Queueing (SIGCOMM 1996). Dropping from the longest line: McKenney, Stochastic
Fairness Queueing (INFOCOM 1990).
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

from slipstream_core.types import Priority

T = TypeVar("T")

_RANKS = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
_MOST_IDLE = 256


class Entry(Generic[T]):
    """One waiting item. `gone`: it was served or discarded."""

    __slots__ = ("gone", "item", "line", "number", "start")

    def __init__(self, item: T, line: _Line[T], number: int, start: float) -> None:
        self.item = item
        self.line = line
        self.number = number
        self.start = start
        self.gone = False

    def __lt__(self, other: Entry[T]) -> bool:
        return (self.start, self.number) < (other.start, other.number)


class _Line(Generic[T]):
    """The entries of one key and priority, oldest first. `end` is the virtual time at which the last one ends."""

    __slots__ = ("end", "entries", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.end = 0.0
        self.entries: dict[int, Entry[T]] = {}

    def until(self, start: float) -> int:
        """The maximum number of the entries, of which there are some, that start at `start` or earlier: they are at
        least one apart."""
        first = next(iter(self.entries.values()))
        return max(0, min(len(self.entries), int(start - first.start) + 1))


class FairQueue(Generic[T]):
    """Entries by priority and key. `len` counts the waiting entries."""

    def __init__(self) -> None:
        self._length = 0
        self._heaps: tuple[list[Entry[T]], ...] = tuple([] for _ in _RANKS)
        self._lines: tuple[dict[str, _Line[T]], ...] = tuple({} for _ in _RANKS)
        self._waiting = [0] * len(_RANKS)
        self._now = [0.0] * len(_RANKS)
        self._numbers = count()

    def __len__(self) -> int:
        return self._length

    def ahead(self, priority: Priority, key: str) -> int:
        """The maximum number of the present entries that would be served before a new one of `key`."""
        rank = _RANKS[priority]
        start = self._start(rank, key)
        return sum(self._waiting[:rank]) + sum(
            [line.until(start) for line in self._lines[rank].values() if line.entries]
        )

    def push(self, item: T, *, priority: Priority, key: str) -> Entry[T]:
        rank = _RANKS[priority]
        lines = self._lines[rank]
        line = lines.get(key)
        if line is None:
            if len(lines) > _MOST_IDLE + 2 * self._waiting[rank]:
                self._forget_idle(rank)
            line = lines[key] = _Line(rank)
        start = self._start(rank, key)
        line.end = start + 1.0
        entry = Entry(item, line, next(self._numbers), start)
        line.entries[entry.number] = entry
        heapq.heappush(self._heaps[rank], entry)
        self._length += 1
        self._waiting[rank] += 1
        return entry

    def pop(self) -> T | None:
        """Removes the next entry and returns its item. None: the queue is empty."""
        for rank, heap in enumerate(self._heaps):
            while heap:
                entry = heapq.heappop(heap)
                if entry.gone:
                    continue
                self._now[rank] = entry.start
                self._take_out(entry)
                if not self._waiting[rank]:
                    self._reset(rank)
                return entry.item
        return None

    def discard(self, entry: Entry[T]) -> None:
        """Removes an entry that no longer waits. No effect if it was removed already."""
        if entry.gone:
            return
        line = entry.line
        if next(reversed(line.entries)) == entry.number:
            line.end = entry.start  # the entry did not use its virtual time
        self._take_out(entry)
        rank = line.rank
        heap = self._heaps[rank]
        if not self._waiting[rank]:
            self._reset(rank)
        elif len(heap) > 64 and len(heap) > 2 * self._waiting[rank]:
            heap[:] = [waiting for waiting in heap if not waiting.gone]
            heapq.heapify(heap)

    def victim(self, priority: Priority, key: str | None) -> Entry[T] | None:
        """The entry to drop from a full queue for a new one: the newest of the longest line of the lowest priority.
        None: the new entry must be refused. `key` None: the new entry waits in another queue, so that any line here
        counts as longer than its own."""
        rank = _RANKS[priority]
        for lowest in range(len(_RANKS) - 1, rank - 1, -1):
            if not self._waiting[lowest]:
                continue
            longest = max(self._lines[lowest].values(), key=lambda line: len(line.entries))
            if lowest == rank and key is not None and len(longest.entries) <= self._own(rank, key) + 1:
                return None
            return longest.entries[next(reversed(longest.entries))]
        return None

    def _start(self, rank: int, key: str) -> float:
        """The virtual time at which a new entry of `key` starts."""
        line = self._lines[rank].get(key)
        return self._now[rank] if line is None else max(self._now[rank], line.end)

    def _own(self, rank: int, key: str) -> int:
        line = self._lines[rank].get(key)
        return len(line.entries) if line is not None else 0

    def _take_out(self, entry: Entry[T]) -> None:
        entry.gone = True
        line = entry.line
        del line.entries[entry.number]
        self._length -= 1
        self._waiting[line.rank] -= 1

    def _reset(self, rank: int) -> None:
        """Clears the virtual times of a priority without entries: the busy period is over, and no key has used time to
        make up for."""
        self._heaps[rank].clear()
        self._lines[rank].clear()
        self._now[rank] = 0.0

    def _forget_idle(self, rank: int) -> None:
        now, lines = self._now[rank], self._lines[rank]
        for key in [key for key, line in lines.items() if not line.entries and line.end <= now]:
            del lines[key]
