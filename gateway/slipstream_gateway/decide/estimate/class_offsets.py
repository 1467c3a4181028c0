"""One figure of a pair's classes for one API key: offsets from the prior of each class.

It is used for the log of the output tokens by class, and for the probability β that a draft token is accepted by class
and kind of temperature. There is a hierarchy, pair -> class; a class's offset lies between the key's own answers and
the median of the keys.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream_core.observation import Level

from slipstream_gateway.decide.estimate.by_key import ByKey, median_near
from slipstream_gateway.decide.estimate.running import Normal, RunningMean, joined

# The maximum weight of a class in its pair, so that one busy class does not speak for all.
_CAP = 20.0
# The estimates of this many keys are stored.
_MAX_VOTES = 32
Votes = dict[str, ByKey[float]]
"""Each key's estimate, by class."""


class Variances(NamedTuple):
    """Variances of a figure between kinds of requests of a class, between API keys, of a class in its pair, and between
    pairs."""

    kinds: float
    keys: float
    classes: float
    pairs: float


class Expected(NamedTuple):
    """An offset with its variance, and the most specific level with data: `samples` answers or keys."""

    mean: float
    variance: float
    level: Level
    samples: float


class ClassOffsets:
    """The offsets of one key. `votes` by class are shared between the keys of a pair."""

    def __init__(self, key: str, votes: Votes, variances: Variances) -> None:
        self._key, self._votes, self._variances = key, votes, variances
        self._own: dict[str, RunningMean] = {}
        self._offsets: dict[str, Normal] = {}
        self._pair, self._pair_weight = Normal(0.0, variances.classes), 0.0

    def expect(self, name: str) -> Expected:
        """The expectation for a request of the class `name`."""
        own, kinds = self._own.get(name), self._variances.kinds
        if own is not None:
            offset = self._offsets[name]
            return Expected(offset.mean, offset.variance + kinds, Level.CLASS, own.weight)
        others = self._votes[name].others(self._key) if name in self._votes else []
        offset = self._joined(self._pair, others)
        if others:
            return Expected(offset.mean, offset.variance + kinds, Level.KEYS, float(len(others)))
        level = Level.PAIR if self._own else Level.PRIOR
        return Expected(offset.mean, offset.variance + kinds, level, self._pair_weight)

    def learn(self, name: str, offset: float, noise: float, weight: float = 1.0) -> None:
        """Records an answer of class `name`, from a closed set; `noise` is the variance of an answer of weight 1."""
        own = self._own.setdefault(name, RunningMean())
        own.add(offset, weight)
        self._learn_pair(noise)
        alone = joined(Normal(own.mean, noise / own.weight), self._pair)
        votes = self._votes.setdefault(name, ByKey(_MAX_VOTES))
        votes.record(self._key, alone.mean)
        self._offsets[name] = self._joined(alone, votes.others(self._key))

    def _learn_pair(self, noise: float) -> None:
        classes = self._own.values()
        total = self._pair_weight = sum(min(one.weight, _CAP) for one in classes)
        mean = sum(min(one.weight, _CAP) * one.mean for one in classes) / total
        found = Normal(mean, noise / total + self._variances.classes / len(classes))
        pair = joined(found, Normal(0.0, self._variances.pairs))
        self._pair = Normal(pair.mean, self._variances.classes)

    def _joined(self, alone: Normal, others: list[float]) -> Normal:
        if not others:
            return alone
        return joined(alone, Normal(median_near(others, alone.mean), self._variances.keys))
