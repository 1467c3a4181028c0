"""Acceptance of a pair's classes, by temperature and context, and the effect of an instruction's words."""

from __future__ import annotations

from slipstream_core.observation import Level, Subject

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.acceptance import BETWEEN_REQUESTS, Beta, effective_trials
from slipstream_gateway.decide.estimate.calibration import Calibration
from slipstream_gateway.decide.estimate.effects import KeyWords, WordEffects
from slipstream_gateway.decide.estimate.median_by_key import KeyEstimates, KeyOffsets
from slipstream_gateway.decide.estimate.outcomes import Trials
from slipstream_gateway.decide.estimate.pooled import CLASS_CAP, SOURCE_CAP, PooledMean
from slipstream_gateway.decide.estimate.shrinkage import Normal, clipped, repeat_noise, shrink
from slipstream_gateway.decide.estimate.skeleton import WORD_BUCKETS

# Variances of β between: templates of a class with the same words, sources of a class, API keys of a class, buckets of
# a class, pairs.
_TEMPLATES, _SOURCES, _KEYS, _BUCKETS, _PAIRS = 0.08**2, 0.05**2, 0.1**2, 0.1**2, 0.1**2
_WORD_VARIANCE = 0.002
# Maximum effect on β of words that other keys taught.
_WORD_LIMIT = 0.1
# Of one request's acceptance around its template's.
_NOISE = 0.2 * BETWEEN_REQUESTS
_CLIP = 0.4
_CALIBRATION_WEIGHT = 0.2
_MAX_BUCKETS = 16
_LOWEST, _HIGHEST = 0.02, 0.98


class _Class:
    __slots__ = ("buckets", "offset", "pooled")

    def __init__(self, offset: Normal) -> None:
        self.pooled = PooledMean(SOURCE_CAP)
        self.offset = offset
        self.buckets: dict[int, PooledMean] = {}

    def bucket(self, bucket: int) -> PooledMean:
        found = self.buckets.get(bucket)
        if found is None:
            if len(self.buckets) >= _MAX_BUCKETS:
                self.buckets.clear()
            found = self.buckets[bucket] = PooledMean(SOURCE_CAP)
        return found


class SharedAcceptance:
    """The data on β that the API keys of a pair share."""

    def __init__(self) -> None:
        self.voices: dict[str, KeyEstimates] = {}
        self.words = WordEffects(WORD_BUCKETS, variance=_WORD_VARIANCE)


class ClassAcceptance:
    """β of one API key's requests by class, as offsets from the prior of its task, plus the effect of words."""

    def __init__(self, key: str, shared: SharedAcceptance) -> None:
        self._voice = KeyOffsets(key, shared.voices, between=_KEYS)
        self._classes: dict[str, _Class] = {}
        self._pooled = PooledMean(CLASS_CAP)
        self._offset = Normal(0.0, priors.ACCEPTANCE_VARIANCE)
        self._words = KeyWords(shared.words, limit=_WORD_LIMIT)
        self._calibration = Calibration(_CALIBRATION_WEIGHT)

    def level(self, cold_class: str) -> tuple[Level, float]:
        """The most specific level with draft tokens of this class, and its number of answers."""
        found = self._classes.get(cold_class)
        if found is not None:
            return Level.CLASS, found.pooled.weight
        own = (Level.PAIR, self._pooled.weight) if self._classes else (Level.PRIOR, 0.0)
        return self._voice.level(cold_class, own)

    def expect(self, subject: Subject, bucket: int) -> Beta:
        """The expected β of a template of this class with these words, at a temperature and context bucket."""
        found = self._classes.get(subject.cold_class)
        if found is None:
            offset = self._voice.unseen(subject.cold_class, self._offset)
        else:
            offset = found.offset
            own = found.buckets.get(bucket)
            if own is not None and len(found.buckets) > 1:
                around = Normal(offset.mean, max(offset.variance, _BUCKETS))
                offset = shrink(own, around, noise=_NOISE, between=_SOURCES)
        effect = self._words.predict(subject.words)
        mean = priors.class_acceptance(subject.cold_class) + offset.mean + effect.value
        unknown = (effect.variance + _TEMPLATES) * self._calibration.factor
        return Beta(min(max(mean, _LOWEST), _HIGHEST), offset.variance + unknown)

    def learn(
        self, subject: Subject, bucket: int, member: str, trials: Trials, samples: float, expected: Beta, *, teach: bool
    ) -> None:
        """Records a request of a source with its expectation `expected`; `samples` is the number of earlier requests of
        its template. Words learn if `teach`."""
        found = self._classes.get(subject.cold_class)
        if found is None:
            found = self._classes[subject.cold_class] = _Class(self._offset)
        share, effective = trials.accepted / trials.decided, effective_trials(trials.decided)
        within = expected.mean * (1.0 - expected.mean) / effective
        residual = clipped(share - expected.mean, _CLIP)
        if samples == 0.0:
            self._calibration.add(residual, within, expected.variance / self._calibration.factor)
        offset, weight = share - priors.class_acceptance(subject.cold_class), effective * BETWEEN_REQUESTS
        found.pooled.add(member, offset, weight)
        found.bucket(bucket).add(member, offset, weight)
        self._pooled.add(subject.cold_class, offset, weight)
        pair = shrink(self._pooled, Normal(0.0, _PAIRS), noise=_NOISE, between=priors.ACCEPTANCE_VARIANCE)
        self._offset = Normal(pair.mean, priors.ACCEPTANCE_VARIANCE)
        alone = shrink(found.pooled, self._offset, noise=_NOISE, between=_SOURCES)
        found.offset = self._voice.record(subject.cold_class, alone)
        if teach:
            self._words.update(subject.words, 0.0, residual, repeat_noise(within, _TEMPLATES, samples))

    def forget_classes(self) -> None:
        """Drops classes when a client sends an unbounded number of them."""
        self._classes.clear()
