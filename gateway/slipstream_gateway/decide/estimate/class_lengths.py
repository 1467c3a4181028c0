"""Output lengths of a pair's classes."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_core.observation import Level

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.median_by_key import KeyEstimates, KeyOffsets
from slipstream_gateway.decide.estimate.pooled import PooledMean
from slipstream_gateway.decide.estimate.running_variance import RunningVariance
from slipstream_gateway.decide.estimate.shrinkage import Normal, clipped, joined

# Variances of log length between: kinds of requests of a class, API keys of a class, pairs.
_KINDS, _KEYS, _PAIRS = 0.3**2, 0.5**2, 0.6**2
_CLIP = 1.5
_SPREAD_SAMPLES = 5.0
# Of a log length: a twentieth. If all answers of a class are alike, such as one label, some uncertainty remains.
_LEAST_SPREAD = 0.05**2


class ClassLength(NamedTuple):
    """The mean of a log length, its variance, and the variance of a single answer around it."""

    mean: float
    variance: float
    spread: float


class _Class:
    __slots__ = ("offset", "spread")

    def __init__(self, offset: Normal) -> None:
        self.offset = offset
        self.spread = RunningVariance(priors.LENGTH_SPREAD, _SPREAD_SAMPLES)


class SharedLengths:
    """The data on lengths that the API keys of a pair share."""

    def __init__(self) -> None:
        self.voices: dict[str, KeyEstimates] = {}


class ClassLengths:
    """Log output tokens of one API key's requests by class, as offsets from the classifier's length bin."""

    def __init__(self, key: str, shared: SharedLengths) -> None:
        self._voice = KeyOffsets(key, shared.voices, between=_KEYS)
        self._classes: dict[str, _Class] = {}
        self._pooled = PooledMean()
        self._offset = Normal(0.0, priors.CLASS_LENGTH_VARIANCE)

    def level(self, cold_class: str) -> tuple[Level, float]:
        """The most specific level with lengths of this class, and their number."""
        found = self._pooled.get(cold_class)
        if found is not None:
            return Level.CLASS, found.weight
        own = (Level.PAIR, self._pooled.weight) if self._classes else (Level.PRIOR, 0.0)
        return self._voice.level(cold_class, own)

    def expect(self, cold_class: str) -> ClassLength:
        """The expectation for a request of this class."""
        found = self._classes.get(cold_class)
        offset = found.offset if found is not None else self._voice.unseen(cold_class, self._offset)
        spread = max(found.spread.value, _LEAST_SPREAD) if found is not None else priors.LENGTH_SPREAD
        return ClassLength(priors.class_length(cold_class) + offset.mean, offset.variance + _KINDS, spread)

    def learn(self, cold_class: str, y: float, expected: ClassLength) -> None:
        """Records log length `y` of a request with its expectation `expected`."""
        found = self._classes.get(cold_class)
        if found is None:
            found = self._classes[cold_class] = _Class(self._offset)
        found.spread.add(clipped(y - expected.mean, _CLIP) ** 2)
        own = self._pooled.add(cold_class, y - priors.class_length(cold_class))
        variance = priors.LENGTH_SPREAD / self._pooled.weight + priors.CLASS_LENGTH_VARIANCE / self._pooled.classes
        pair = joined(Normal(self._pooled.mean, variance), Normal(0.0, _PAIRS))
        self._offset = Normal(pair.mean, priors.CLASS_LENGTH_VARIANCE)
        alone = joined(Normal(own.mean, found.spread.value / own.weight), self._offset)
        found.offset = self._voice.record(cold_class, alone)
