"""How many requests of one pair may run at once, found from how long their first tokens take.

Gradient2 of Netflix' concurrency-limits, once a window::

    gradient = max(0.5, min(1, tolerance · usual latency / latency))
    limit    = limit · gradient + sqrt(limit)          a fall is smoothed: 0.8 · old + 0.2 · new

Three things differ. Latencies are ratios to what is usual for a request's size (`latency`). And the limit begins at its
cap, because a server that batches gives more tokens the more requests it has, up to a point that only its latency
tells; a fall starts at what was in flight, so that it is felt at once. And it climbs by a quarter where latencies are
far below what would lower it, as after a server's return: a limit that is too low refuses what could be served.

https://github.com/Netflix/concurrency-limits (Gradient2Limit)
"""

from __future__ import annotations

import math

from slipstream_gateway.admission.latency import LatencyWindow, Sample

WINDOW_S = 0.5
WINDOW_SAMPLES = 10
_STEEPEST = 0.5
_SMOOTHING = 0.2
_DROP = 0.9
_FAR_BELOW, _STRIDE = 0.6, 0.25


class AdaptiveLimit:
    """`value` lies between `least` and `most`."""

    def __init__(self, *, least: int, most: int, tolerance: float, adaptive: bool = True) -> None:
        self.value = most
        self.ratio = 1.0
        self._least = min(least, most)
        self._most = most
        self._tolerance = tolerance
        self._adaptive = adaptive
        self._estimate = float(most)
        self._window = LatencyWindow()
        self._window_began_s: float | None = None
        self._peak = 0
        self._dropped = False

    def record(self, sample: Sample, *, in_flight: int, now_s: float) -> None:
        """A request ended well; `in_flight` counts it, too."""
        if not self._adaptive:
            return
        self._peak = max(self._peak, in_flight)
        self._window.add(sample)
        if self._window_began_s is None:
            self._window_began_s = now_s
        elif self._window.samples >= WINDOW_SAMPLES and now_s - self._window_began_s >= WINDOW_S:
            self._end_window(now_s)

    def drop(self, *, in_flight: int) -> None:
        """The server refused a request because it has too many: once a window, the limit falls below what runs."""
        if self._adaptive and not self._dropped:
            self._dropped = True
            self._set(_DROP * min(self._estimate, in_flight))

    def _end_window(self, now_s: float) -> None:
        self.ratio = self._window.close(at_least=self.value <= self._least)
        gradient = max(_STEEPEST, min(1.0, self._tolerance / self.ratio))
        if gradient < 1.0:
            used = min(self._estimate, max(self._peak, self._least))
            self._set((1.0 - _SMOOTHING) * used + _SMOOTHING * (used * gradient + math.sqrt(used)))
        elif self._peak >= self._estimate / 2 and not self._dropped:
            is_far = self.ratio < self._tolerance * _FAR_BELOW
            self._set(self._estimate + max(math.sqrt(self._estimate), _STRIDE * self._estimate if is_far else 0.0))
        self._window_began_s, self._peak, self._dropped = now_s, 0, False

    def _set(self, estimate: float) -> None:
        self._estimate = min(max(estimate, self._least), self._most)
        self.value = int(self._estimate)
