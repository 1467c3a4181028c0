"""The results of a server's recent attempts: counts over a sliding window, and times to the first token."""

from __future__ import annotations

from collections import deque
from statistics import median

_BUCKETS = 10
_KEPT = 64
_LATENCY_WINDOWS = 3.0


class ErrorWindow:
    """Successful and failed attempts over the last `window_s`, in tenths of it."""

    __slots__ = ("_at", "_bucket_s", "_buckets", "bad", "good")

    def __init__(self, window_s: float) -> None:
        self.good = 0
        self.bad = 0
        self._bucket_s = window_s / _BUCKETS
        self._buckets = [[0, 0] for _ in range(_BUCKETS)]
        self._at = 0

    def add(self, now_s: float, *, ok: bool) -> None:
        self.forget(now_s)
        bucket = self._buckets[self._at % _BUCKETS]
        if ok:
            self.good += 1
            bucket[0] += 1
        else:
            self.bad += 1
            bucket[1] += 1

    def forget(self, now_s: float) -> None:
        """Drops entries older than the window."""
        at = int(now_s / self._bucket_s)
        for passed in range(max(self._at + 1, at - _BUCKETS + 1), at + 1):
            bucket = self._buckets[passed % _BUCKETS]
            self.good -= bucket[0]
            self.bad -= bucket[1]
            bucket[0] = bucket[1] = 0
        self._at = max(self._at, at)

    def clear(self) -> None:
        self.good = self.bad = 0
        for bucket in self._buckets:
            bucket[0] = bucket[1] = 0


class Latencies:
    """The last few times to the first token; their median is robust against single long prompts."""

    __slots__ = ("_keep_s", "_kept")

    def __init__(self, window_s: float) -> None:
        self._keep_s = _LATENCY_WINDOWS * window_s
        self._kept: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def add(self, now_s: float, ttft_s: float) -> None:
        self._kept.append((now_s, ttft_s))

    def clear(self) -> None:
        self._kept.clear()

    def median_s(self, now_s: float, *, at_least: int) -> float | None:
        """None if fewer than `at_least` samples are recent enough."""
        recent = [ttft_s for time_s, ttft_s in self._kept if now_s - time_s <= self._keep_s]
        return median(recent) if len(recent) >= at_least else None
