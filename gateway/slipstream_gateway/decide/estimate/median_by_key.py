"""One figure by API key, and the median: the exchange of an estimate between keys.

Each key has one estimate, however many requests it sends. A key uses the median of its own expectation and of the
others' estimates. A minority of the values cannot shift a median arbitrarily (Huber 1981, section 3.1): one key moves
another key's estimate at most to a third key's value.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from slipstream_core.observation import Level

from slipstream_gateway.decide.estimate.shrinkage import Normal, joined

# The estimates of this many keys are stored, those that changed last.
_MAX_VOICES = 32
# A smaller change of a probability or a log length is not worth the time.
_SAME = 0.003
# With only one other estimate, common effects cannot be separated from that key's own.
LEAST_OTHERS = 2


def median_near(others: list[float], own: float) -> float:
    """The median of the `others` and of `own`; of two middle ones, the one nearer to `own`."""
    return _middle(sorted((*others, own)), own)


def _middle(means: list[float], own: float) -> float:
    low, high = means[(len(means) - 1) // 2], means[len(means) // 2]
    return low if abs(low - own) <= abs(high - own) else high


class KeyEstimates:
    """Each key's estimate of one figure, from its own requests alone."""

    __slots__ = ("_means", "_sorted")

    def __init__(self) -> None:
        self._means: OrderedDict[str, float] = OrderedDict()
        self._sorted: list[float] = []

    def record(self, key: str, mean: float) -> None:
        """Stores the estimate of `key` in place of its last one, unless they are nearly equal."""
        before = self._means.get(key)
        if before is not None:
            if abs(mean - before) < _SAME:
                return
            del self._means[key]
        elif len(self._means) >= _MAX_VOICES:
            _, before = self._means.popitem(last=False)
        if before is not None:
            del self._sorted[bisect_left(self._sorted, before)]
        self._means[key] = mean
        insort(self._sorted, mean)

    def others(self, key: str) -> int:
        """The number of estimates beside that of `key`; 0 if they are too few to count."""
        count = len(self._means) - (key in self._means)
        return count if count >= LEAST_OTHERS else 0

    def median(self, key: str, own: float) -> float | None:
        """The median of the others' estimates and of that of `key`, or of `own` if it has none; of two middle ones, the
        one nearer to `own`. None if the others are too few."""
        is_known = key in self._means
        if len(self._means) - is_known < LEAST_OTHERS:
            return None
        return _middle(self._sorted, own) if is_known else median_near(self._sorted, own)


class KeyOffsets:
    """The offsets of a pair's classes for one key, between its own evidence and the `voices` by class; `between` is the
    variance of an offset between keys."""

    __slots__ = ("_between", "_key", "_voices")

    def __init__(self, key: str, voices: dict[str, KeyEstimates], *, between: float) -> None:
        self._key = key
        self._voices = voices
        self._between = between

    def level(self, cold_class: str, own: tuple[Level, float]) -> tuple[Level, float]:
        """The most specific level with data on a class that this key has none of, and its number of observations or
        keys; `own` is from the key's other classes."""
        found = self._voices.get(cold_class)
        others = found.others(self._key) if found is not None else 0
        return (Level.KEYS, float(others)) if others else own

    def unseen(self, cold_class: str, own: Normal) -> Normal:
        """The offset of a class without data of this key, with `own` from its other classes."""
        found = self._voices.get(cold_class)
        return own if found is None else self._joined(found, own)

    def record(self, cold_class: str, own: Normal) -> Normal:
        """Stores the key's estimate, `own` of a class; returns the class's offset after that."""
        found = self._voices.get(cold_class)
        if found is None:  # classes are from a closed set
            found = self._voices[cold_class] = KeyEstimates()
        found.record(self._key, own.mean)
        return self._joined(found, own)

    def _joined(self, voices: KeyEstimates, own: Normal) -> Normal:
        mean = voices.median(self._key, own.mean)
        return own if mean is None else joined(own, Normal(mean, self._between))
