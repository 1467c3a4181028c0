"""Acceptance of a pair's classes. A class has its own estimate for each kind of temperature."""

from __future__ import annotations

from slipstream_core.observation import Level, Subject

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.acceptance import BETWEEN_REQUESTS, Beta, effective_trials
from slipstream_gateway.decide.estimate.median_by_key import KeyEstimates, KeyOffsets
from slipstream_gateway.decide.estimate.outcomes import Trials
from slipstream_gateway.decide.estimate.pooled import CLASS_CAP, SOURCE_CAP, PooledMean
from slipstream_gateway.decide.estimate.shrinkage import Normal, shrink

# Variances of β between: templates of a class, sources of a class, API keys of a class, pairs.
_TEMPLATES, _SOURCES, _KEYS, _PAIRS = 0.08**2, 0.05**2, 0.12**2, 0.1**2
# Of one request's acceptance around its template's.
_NOISE = 0.2 * BETWEEN_REQUESTS
_LOWEST, _HIGHEST = 0.02, 0.98


class _Class:
    __slots__ = ("offset", "pooled")

    def __init__(self, offset: Normal) -> None:
        self.pooled = PooledMean(SOURCE_CAP)
        self.offset = offset


class SharedAcceptance:
    """The data on β that the API keys of a pair share."""

    def __init__(self) -> None:
        self.voices: dict[str, KeyEstimates] = {}


class ClassAcceptance:
    """β of one API key's requests by class, as offsets from the prior of its task."""

    def __init__(self, key: str, shared: SharedAcceptance) -> None:
        self._voice = KeyOffsets(key, shared.voices, between=_KEYS)
        self._classes: dict[str, _Class] = {}
        self._pooled = PooledMean(CLASS_CAP)
        self._offset = Normal(0.0, priors.ACCEPTANCE_VARIANCE)

    def level(self, subject: Subject) -> tuple[Level, float]:
        """The most specific level with draft tokens of its class, and its number of answers."""
        name = _name(subject)
        found = self._classes.get(name)
        if found is not None:
            return Level.CLASS, found.pooled.weight
        own = (Level.PAIR, self._pooled.weight) if self._classes else (Level.PRIOR, 0.0)
        return self._voice.level(name, own)

    def expect(self, subject: Subject) -> Beta:
        """The expected β of a template of this class."""
        name = _name(subject)
        found = self._classes.get(name)
        offset = found.offset if found is not None else self._voice.unseen(name, self._offset)
        mean = priors.class_acceptance(subject.cold_class) + offset.mean
        return Beta(min(max(mean, _LOWEST), _HIGHEST), offset.variance + _TEMPLATES)

    def learn(self, subject: Subject, member: str, trials: Trials) -> None:
        """Records a request of a source."""
        name = _name(subject)
        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = _Class(self._offset)
        share, effective = trials.accepted / trials.decided, effective_trials(trials.decided)
        offset, weight = share - priors.class_acceptance(subject.cold_class), effective * BETWEEN_REQUESTS
        found.pooled.add(member, offset, weight)
        self._pooled.add(name, offset, weight)
        pair = shrink(self._pooled, Normal(0.0, _PAIRS), noise=_NOISE, between=priors.ACCEPTANCE_VARIANCE)
        self._offset = Normal(pair.mean, priors.ACCEPTANCE_VARIANCE)
        alone = shrink(found.pooled, self._offset, noise=_NOISE, between=_SOURCES)
        found.offset = self._voice.record(name, alone)


def _name(subject: Subject) -> str:
    return f"{subject.cold_class}/{subject.temperature}"
