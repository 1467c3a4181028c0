"""Output lengths of a pair's classes, and the effect of an instruction's words: the level above the fingerprint's."""

from __future__ import annotations

from slipstream_core.observation import Level, Subject

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.calibration import Calibration, RunningVariance
from slipstream_gateway.decide.estimate.effects import KeyWords, WordEffects
from slipstream_gateway.decide.estimate.lengths import Length, LengthPrior
from slipstream_gateway.decide.estimate.median_by_key import KeyEstimates, KeyOffsets
from slipstream_gateway.decide.estimate.pooled import CLASS_CAP, SOURCE_CAP, PooledMean
from slipstream_gateway.decide.estimate.shrinkage import Normal, clipped, repeat_noise, shrink
from slipstream_gateway.decide.estimate.skeleton import WORD_BUCKETS

# Variances of log length between: templates of a class with the same words, sources of a class, API keys of a class,
# pairs.
_TEMPLATES, _SOURCES, _KEYS, _PAIRS = 0.35**2, 0.3**2, 0.5**2, 0.6**2
_WORD_VARIANCE, _WORD_SLOPE_VARIANCE = 0.05, 0.02
# Maximum effect on log length, and on its slope by the prompt's, of words that other keys taught.
_WORD_LIMIT, _WORD_SLOPE_LIMIT = 0.5, 0.3
# The log prompt length at which words' slopes have no effect: that of 150 tokens.
_MIDDLE_LOG_PROMPT = 5.0
_CLIP = 1.5
_SPREAD_SAMPLES = 5.0
_CALIBRATION_WEIGHT = 3.0
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
        self.words = WordEffects(WORD_BUCKETS, variance=_WORD_VARIANCE, slope_variance=_WORD_SLOPE_VARIANCE)


class ClassLengths:
    """Log output tokens of one API key's requests by class, as offsets from the classifier's length bin, plus the
    effect of words."""

    def __init__(self, key: str, shared: SharedLengths) -> None:
        self._voice = KeyOffsets(key, shared.voices, between=_KEYS)
        self._classes: dict[str, _Class] = {}
        self._pooled = PooledMean(CLASS_CAP)
        self._offset = Normal(0.0, priors.CLASS_LENGTH_VARIANCE)
        self._words = KeyWords(shared.words, limit=_WORD_LIMIT, slope_limit=_WORD_SLOPE_LIMIT)
        self._calibration = Calibration(_CALIBRATION_WEIGHT)

    def level(self, cold_class: str) -> tuple[Level, float]:
        """The most specific level with lengths of this class, and their number."""
        found = self._classes.get(cold_class)
        if found is not None:
            return Level.CLASS, found.pooled.weight
        own = (Level.PAIR, self._pooled.weight) if self._classes else (Level.PRIOR, 0.0)
        return self._voice.level(cold_class, own)

    def expect(self, subject: Subject, x: float) -> LengthPrior:
        """The expectation for a template of this class with these words, at log prompt length `x`."""
        found = self._classes.get(subject.cold_class)
        if found is None:
            spread, offset = (
                priors.LENGTH_SPREAD,
                self._voice.unseen(subject.cold_class, self._offset),
            )
        else:
            spread, offset = found.spread, found.offset
        effect = self._words.predict(subject.words)
        mean = priors.class_length(subject.cold_class) + offset.mean + effect.value
        unknown = (effect.variance + _TEMPLATES) * self._calibration.factor
        return LengthPrior(
            x, mean + effect.slope * (x - _MIDDLE_LOG_PROMPT), offset.variance + unknown, effect.slope, spread
        )

    def learn(
        self, subject: Subject, member: str, y: float, own: Length, expected: LengthPrior, *, teach: bool
    ) -> None:
        """Records log length `y` of a source with its expectation `expected`; `own` is the template's earlier data.
        Words learn if `teach`."""
        found = self._classes.get(subject.cold_class)
        if found is None:
            found = self._classes[subject.cold_class] = _Class(self._offset)
        residual = clipped(y - expected.mean, _CLIP)
        if own.samples >= _SETTLED_SAMPLES:
            distance = clipped(y - own.expect(expected.x), _CLIP)
            found.within.add(max(distance * distance - own.variance, 0.0))
        elif own.samples == 0.0:
            found.total.add(residual * residual)
            self._calibration.add(residual, expected.spread, expected.variance / self._calibration.factor)
        offset = y - priors.class_length(subject.cold_class)
        found.pooled.add(member, offset)
        self._pooled.add(subject.cold_class, offset)
        pair = shrink(
            self._pooled, Normal(0.0, _PAIRS), noise=priors.LENGTH_SPREAD, between=priors.CLASS_LENGTH_VARIANCE
        )
        self._offset = Normal(pair.mean, priors.CLASS_LENGTH_VARIANCE)
        alone = shrink(found.pooled, self._offset, noise=found.total.value, between=_SOURCES)
        found.offset = self._voice.record(subject.cold_class, alone)
        if teach:
            noise = repeat_noise(expected.spread, _TEMPLATES, own.samples)
            self._words.update(subject.words, expected.x - _MIDDLE_LOG_PROMPT, residual, noise)

    def forget_classes(self) -> None:
        """Drops classes when a client sends an unbounded number of them."""
        self._classes.clear()
