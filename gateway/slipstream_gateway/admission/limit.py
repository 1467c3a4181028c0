"""An adaptive limit on the concurrent requests of one pair, derived from their latencies.

Gradient2 of Netflix' concurrency-limits, once per window::

    gradient = max(0.5, min(1, tolerance · usual latency / latency))
    limit    = limit · gradient + sqrt(limit)          a decrease is smoothed: 0.8 · old + 0.2 · new

This implementation differs in three points:

- Latencies are ratios to the usual latency of requests of the same size (`LatencyWindow`).
- The limit starts at its cap. The throughput of a batching server grows with the number of requests, up to a point that
  only its latency shows. A decrease starts at the number in flight, so that it takes effect at once.
- The limit grows by a quarter while latencies are far below the threshold of a decrease, as after a server's return: a
  limit that is too low refuses requests that could be served.

https://github.com/Netflix/concurrency-limits (Gradient2Limit)

Latencies are compared between similar requests, because long prompts and long answers take long. A streamed request is
measured by its time to the first token, and compared with prompts of about the same length. Any other request is
measured by its time per output token, and compared with answers and prompts of about the same length.
"""

from __future__ import annotations

import math
from statistics import median

import msgspec

QUICK_S = 0.2
_WARM_UP = 10
_MOST_RATIOS = 128
# Weights of a window's mean. The usual latency falls faster than it rises, towards the latency without overload, like
# BBR's windowed minimum. It rises faster while the limit is at its minimum: then the load is not the cause of latency.
_RISE, _FALL, _RISE_AT_LEAST = 1 / 600, 1 / 100, 1 / 30
_FALLS_BELOW, _FALL_FAR = 0.5, 0.95
_MOST_RISE = 2.0  # bounds the effect of an overload on the usual latency


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A request that succeeded. Times count from its admission. `ttft_s` is None if the answer was not streamed; then
    `e2e_s` and `output_tokens` are used. `prompt_size` has any unit that is the same for all requests."""

    prompt_size: int
    ttft_s: float | None
    e2e_s: float
    output_tokens: int


class _Usual:
    """The requests of one size: their usual latency, and the sum and number of latencies in this window."""

    __slots__ = ("count", "seen", "sum_s", "usual_s")

    def __init__(self) -> None:
        self.usual_s = 0.0
        self.seen = 0
        self.sum_s = 0.0
        self.count = 0


class LatencyWindow:
    """The latencies since the last `close`, as ratios to the usual latency of requests of the same size."""

    def __init__(self) -> None:
        self.samples = 0
        self._ratios: list[float] = []
        self._sizes: dict[tuple[int, ...], _Usual] = {}
        self._touched: list[_Usual] = []

    def add(self, sample: Sample) -> None:
        if sample.ttft_s is not None:
            size: tuple[int, ...] = (sample.prompt_size.bit_length(),)
            latency_s, quick_s = sample.ttft_s, QUICK_S
        elif sample.output_tokens > 0:
            size = (sample.prompt_size.bit_length(), sample.output_tokens.bit_length())
            latency_s, quick_s = sample.e2e_s / sample.output_tokens, QUICK_S / sample.output_tokens
        else:
            return
        usual = self._sizes.get(size)
        if usual is None:
            usual = self._sizes[size] = _Usual()
        self.samples += 1
        if usual.count == 0:
            self._touched.append(usual)
        usual.count += 1
        usual.sum_s += latency_s
        if usual.seen >= _WARM_UP and len(self._ratios) < _MOST_RATIOS:
            self._ratios.append(max(latency_s, quick_s) / max(usual.usual_s, quick_s))

    def close(self, *, at_least: bool) -> float:
        """Ends the window and begins the next one. Returns the median ratio of latency to usual latency, 1 if none is
        known yet. `at_least`: the limit is at its minimum."""
        ratio = median(self._ratios) if self._ratios else 1.0
        for usual in self._touched:
            _learn(usual, _RISE_AT_LEAST if at_least else _RISE)
        self._ratios.clear()
        self._touched.clear()
        self.samples = 0
        return ratio


def _learn(usual: _Usual, rise: float) -> None:
    mean_s = max(usual.sum_s / usual.count, 1e-6)
    if usual.seen < _WARM_UP:
        seen = usual.seen + usual.count
        usual.usual_s += (mean_s - usual.usual_s) * usual.count / seen
        usual.seen = seen
    else:
        usual_s = usual.usual_s
        usual.usual_s += (min(mean_s, _MOST_RISE * usual_s) - usual_s) * (rise if mean_s > usual_s else _FALL)
        if mean_s < _FALLS_BELOW * usual_s:
            usual.usual_s *= _FALL_FAR
    usual.sum_s, usual.count = 0.0, 0


WINDOW_S = 0.5
WINDOW_SAMPLES = 10
_STEEPEST = 0.5
_SMOOTHING = 0.2
_DROP = 0.9
_FAR_BELOW, _STRIDE = 0.6, 0.25


class AdaptiveLimit:
    """`value` is the limit, from `least` to `most`. `ratio` is the last window's ratio of latency to usual latency."""

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
        """Adds a request that succeeded; `in_flight` includes it."""
        if not self._adaptive:
            return
        self._peak = max(self._peak, in_flight)
        self._window.add(sample)
        if self._window_began_s is None:
            self._window_began_s = now_s
        elif self._window.samples >= WINDOW_SAMPLES and now_s - self._window_began_s >= WINDOW_S:
            self._end_window(now_s)

    def drop(self, *, in_flight: int) -> None:
        """Lowers the limit below the number in flight, once per window, because the server refused a request as
        overloaded."""
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
