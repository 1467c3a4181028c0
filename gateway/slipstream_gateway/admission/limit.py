"""How many requests of one pair may run at once, found from how long their first tokens take.

Gradient2 of Netflix' concurrency-limits, once a window::

    gradient = max(0.5, min(1, tolerance · usual latency / latency))
    limit    = limit · gradient + sqrt(limit)          a fall is smoothed: 0.8 · old + 0.2 · new

Three things differ. Latencies are ratios to what is usual for a request's size (`latency`). And the limit begins at its
cap, because a server that batches gives more tokens the more requests it has, up to a point that only its latency
tells; a fall starts at what was in flight, so that it is felt at once. And it climbs by a quarter where latencies are
far below what would lower it, as after a server's return: a limit that is too low refuses what could be served.

https://github.com/Netflix/concurrency-limits (Gradient2Limit)

A latency is compared with others of its kind, because a long prompt takes long, and so does a long answer: a streamed
request by its time to the first token, against prompts of about the same length; another one by its time per output
token, against answers and prompts of about the same length.
"""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

QUICK_S = 0.2
_WARM_UP = 10
_MOST_RATIOS = 128
# Weights of a window's mean. What is usual falls sooner than it rises: towards what the pair does while it is not
# overloaded, as BBR's windowed minimum. Where the limit can fall no further, the load is not what makes it slow.
_RISE, _FALL, _RISE_AT_LEAST = 1 / 600, 1 / 100, 1 / 30
_FAR_BELOW, _FALL_FAR = 0.5, 0.95
_MOST_RISE = 2.0  # what an overload does to latencies must not soon become usual


class Sample(NamedTuple):
    """A request that ended well: `ttft_s` since it was let in, None where it was not streamed; then `e2e_s` and
    `output_tokens` count. `prompt_size` in any unit that is the same for all."""

    prompt_size: int
    ttft_s: float | None
    e2e_s: float
    output_tokens: int


class _Usual:
    """Requests of one size: what is usual, and what this window saw."""

    __slots__ = ("count", "seen", "sum_s", "usual_s")

    def __init__(self) -> None:
        self.usual_s = 0.0
        self.seen = 0
        self.sum_s = 0.0
        self.count = 0


class LatencyWindow:
    """The requests since the last `close`."""

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
        """The window's median ratio of latency to usual latency, 1 where nothing is known yet; begins the next one.
        `at_least`: the limit can fall no further."""
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
        if mean_s < _FAR_BELOW * usual_s:
            usual.usual_s *= _FALL_FAR
    usual.sum_s, usual.count = 0.0, 0


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
