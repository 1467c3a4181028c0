"""How far the latest answers of each API key lie from a curve that all keys share, at one load.

A server that becomes slower is slower for every key. The requests of one key may be slow for a reason of its own, such
as long prompts. So an unusual time is the servers' only where other keys see the same.
"""

from __future__ import annotations

from collections import OrderedDict

# A key counts for so many answers after its last one, and at most so many keys do, the most recent ones.
_REMEMBERED = 256
_MAX_KEYS = 8
# Answers of a key that its mean runs over.
_WINDOW = 2.0


class _Key:
    __slots__ = ("count", "last", "mean")

    def __init__(self, last: int) -> None:
        self.count = self.mean = 0.0
        self.last = last


class Deviations:
    """Running means of log ratios, an answer's time over the curve's, by key. As long as there is one key, its answers
    make the curve, so that its mean counts as 0."""

    __slots__ = ("_answers", "_keys", "_only")

    def __init__(self) -> None:
        self._answers = 0
        self._only: str | None = None
        self._keys: OrderedDict[str, _Key] = OrderedDict()

    def confirmed(self, key: str, log_ratio: float) -> float:
        """The part of an answer's `log_ratio` that says something of the servers: all of it where no other key is
        known, else up to the median of the keys' means; of two in the middle the one nearer to 0."""
        if self._only is None and not self._keys:
            self._only = key
        if self._only != key:
            self._add(key, log_ratio)
        if self._only is not None:
            return log_ratio
        means = sorted([found.mean for found in self._keys.values()])
        median = min(means[(len(means) - 1) // 2], means[len(means) // 2], key=abs)
        return max(min(median, 0.0), min(max(median, 0.0), log_ratio))

    def _add(self, key: str, log_ratio: float) -> None:
        """Take in an answer; keys that have sent nothing for long leave."""
        keys = self._keys
        if self._only is not None:
            keys[self._only] = _Key(self._answers)
            keys[self._only].count = _WINDOW
            self._only = None
        self._answers += 1
        found = keys.get(key)
        if found is None:
            found = keys[key] = _Key(self._answers)
        else:
            keys.move_to_end(key)
        found.count = min(found.count + 1.0, _WINDOW)
        found.mean += (log_ratio - found.mean) / found.count
        found.last = self._answers
        while len(keys) > _MAX_KEYS or next(iter(keys.values())).last < self._answers - _REMEMBERED:
            keys.popitem(last=False)
        if len(keys) == 1:
            keys.clear()
            self._only = key
