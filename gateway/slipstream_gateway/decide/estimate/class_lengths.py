"""Output lengths of a pair's classes: the level above the fingerprint's."""

from __future__ import annotations

from slipstream_core.observation import Level, Subject

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.lengths import Length, LengthPrior
from slipstream_gateway.decide.estimate.median_by_key import KeyEstimates, KeyOffsets
from slipstream_gateway.decide.estimate.pooled import CLASS_CAP, SOURCE_CAP, PooledMean
from slipstream_gateway.decide.estimate.running_variance import RunningVariance
from slipstream_gateway.decide.estimate.shrinkage import Normal, clipped, shrink

# Variances of log length between: templates of a class, sources of a class, API keys of a class, pairs.
_TEMPLATES, _SOURCES, _KEYS, _PAIRS = 0.3**2, 0.3**2, 0.5**2, 0.6**2
_CLIP = 1.5
_SPREAD_SAMPLES = 5.0
# A template with this many answers provides an estimate of their spread.
_SETTLED_SAMPLES = 2.0
# Of a log length: a twentieth.
_LEAST_SPREAD = 0.05**2


class _Class:
    __slots__ = ("offset", "pooled", "total", "within")

    def __init__(self, offset: Normal) -> None:
        self.pooled = PooledMean(SOURCE_CAP)
        self.offset = offset
        self.within = RunningVariance(priors.LENGTH_SPREAD, _SPREAD_SAMPLES)
        self.total = RunningVariance(2.0 * priors.LENGTH_SPREAD, _SPREAD_SAMPLES)

    @property
    def spread(self) -> float:
        """The variance of one template's answers; that of all answers of the class is at least as large. If all answers
        of a class are alike, such as one label, some uncertainty remains for the next template."""
        return max(min(self.within.value, self.total.value), _LEAST_SPREAD)


class SharedLengths:
    """The data on lengths that the API keys of a pair share."""

    def __init__(self) -> None:
        self.voices: dict[str, KeyEstimates] = {}


class ClassLengths:
    """Log output tokens of one API key's requests by class, as offsets from the classifier's length bin."""

    def __init__(self, key: str, shared: SharedLengths) -> None:
        self._voice = KeyOffsets(key, shared.voices, between=_KEYS)
        self._classes: dict[str, _Class] = {}
        self._pooled = PooledMean(CLASS_CAP)
        self._offset = Normal(0.0, priors.CLASS_LENGTH_VARIANCE)

    def level(self, cold_class: str) -> tuple[Level, float]:
        """The most specific level with lengths of this class, and their number."""
        found = self._classes.get(cold_class)
        if found is not None:
            return Level.CLASS, found.pooled.weight
        own = (Level.PAIR, self._pooled.weight) if self._classes else (Level.PRIOR, 0.0)
        return self._voice.level(cold_class, own)

    def expect(self, subject: Subject, x: float) -> LengthPrior:
        """The expectation for a template of this class, at log prompt length `x`."""
        found = self._classes.get(subject.cold_class)
        if found is None:
            spread, offset = (
                priors.LENGTH_SPREAD,
                self._voice.unseen(subject.cold_class, self._offset),
            )
        else:
            spread, offset = found.spread, found.offset
        mean = priors.class_length(subject.cold_class) + offset.mean
        return LengthPrior(x, mean, offset.variance + _TEMPLATES, spread)

    def learn(self, subject: Subject, member: str, y: float, own: Length, expected: LengthPrior) -> None:
        """Records log length `y` of a source with its expectation `expected`; `own` is the template's earlier data."""
        found = self._classes.get(subject.cold_class)
        if found is None:
            found = self._classes[subject.cold_class] = _Class(self._offset)
        residual = clipped(y - expected.mean, _CLIP)
        if own.samples >= _SETTLED_SAMPLES:
            distance = clipped(y - own.expect(expected.x), _CLIP)
            found.within.add(max(distance * distance - own.variance, 0.0))
        elif own.samples == 0.0:
            found.total.add(residual * residual)
        offset = y - priors.class_length(subject.cold_class)
        found.pooled.add(member, offset)
        self._pooled.add(subject.cold_class, offset)
        pair = shrink(
            self._pooled, Normal(0.0, _PAIRS), noise=priors.LENGTH_SPREAD, between=priors.CLASS_LENGTH_VARIANCE
        )
        self._offset = Normal(pair.mean, priors.CLASS_LENGTH_VARIANCE)
        alone = shrink(found.pooled, self._offset, noise=found.total.value, between=_SOURCES)
        found.offset = self._voice.record(subject.cold_class, alone)
