"""The deviation of each API key's latest answers from a curve that all keys share, at one load.

A server that becomes slower is slower for every key, whereas the requests of one key may be slow for a reason of their
own, such as long prompts. So an unusual time is attributed to the servers only if other keys see the same.
"""

from __future__ import annotations

# A key counts for this many answers after its last one, and at most this many keys, the most recent ones, count.
_REMEMBERED = 256
_MAX_KEYS = 8


class Deviations:
    """Running means of log ratios, an answer's time over the curve's, by key; the last answer is half of a mean. With a
    single key, its answers define the curve, so that its mean counts as 0."""

    __slots__ = ("_answers", "_keys", "_only")

    def __init__(self) -> None:
        self._answers = 0
        self._only: str | None = None
        self._keys: dict[str, tuple[float, int]] = {}  # mean and last answer, the most recent key last

    def confirmed(self, key: str, log_ratio: float, chance: float) -> float:
        """The part of an answer's `log_ratio` that is attributed to the servers: all of it if there is no other key, or
        if it is within `chance` of 0; else up to the median of the keys' means (of two middle ones, the one nearer to
        0)."""
        if self._only is None and not self._keys:
            self._only = key
        if self._only == key:
            return log_ratio
        self._add(key, log_ratio)
        if self._only is not None or -chance <= log_ratio <= chance:
            return log_ratio
        means = sorted([mean for mean, _ in self._keys.values()])
        median = min(means[(len(means) - 1) // 2], means[len(means) // 2], key=abs)
        return max(min(median, 0.0), min(max(median, 0.0), log_ratio))

    def _add(self, key: str, log_ratio: float) -> None:
        """Records an answer; keys without recent answers are dropped."""
        keys = self._keys
        if self._only is not None:
            keys[self._only] = 0.0, self._answers
            self._only = None
        self._answers += 1
        before = keys.pop(key, None)
        keys[key] = 0.5 * (before[0] + log_ratio) if before is not None else log_ratio, self._answers
        oldest = next(iter(keys))
        while len(keys) > _MAX_KEYS or keys[oldest][1] < self._answers - _REMEMBERED:
            del keys[oldest]
            oldest = next(iter(keys))
        if len(keys) == 1:
            keys.clear()
            self._only = key
