"""How long first tokens take, compared with what is usual for requests of their size.

A long prompt takes long, and so does a long answer; neither says that a server has too much to do. So a request is
held against others like it: a streamed one by its time to the first token, against prompts of about the same length;
one that is not streamed by its time per output token, against answers and prompts of about the same lengths.

What comes within `QUICK_S` is quick, however much quicker it usually is: a crowd that arrives at once makes a first
token of 5 ms one of 100 ms in the gateway alone, which no limit on its servers' work would mend.
"""

from __future__ import annotations

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
