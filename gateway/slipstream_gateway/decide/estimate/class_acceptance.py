"""The probability β that a draft token is accepted, given that all before it were, by class and kind of temperature.

A request's draft tokens are not independent trials, because requests differ. n of them count as n / (1 + n·ρ), with ρ
the share of the variance that lies between requests, so that one long answer does not imply certainty.
"""

from __future__ import annotations

from slipstream_core.observation import Level, Subject

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.median_by_key import KeyEstimates, KeyOffsets
from slipstream_gateway.decide.estimate.outcomes import Trials
from slipstream_gateway.decide.estimate.pooled import PooledMean
from slipstream_gateway.decide.estimate.shrinkage import Normal, joined

_BETWEEN_REQUESTS = 0.02
# Variances of β between: kinds of requests of a class, API keys of a class, pairs.
_KINDS, _KEYS, _PAIRS = 0.08**2, 0.12**2, 0.1**2
# Of one request's acceptance around its class's.
_NOISE = 0.2 * _BETWEEN_REQUESTS
_LOWEST, _HIGHEST = 0.02, 0.98


class SharedAcceptance:
    """The data on β that the API keys of a pair share."""

    def __init__(self) -> None:
        self.voices: dict[str, KeyEstimates] = {}


class ClassAcceptance:
    """β of one API key's requests by class, as offsets from the prior of its task."""

    def __init__(self, key: str, shared: SharedAcceptance) -> None:
        self._voice = KeyOffsets(key, shared.voices, between=_KEYS)
        self._offsets: dict[str, Normal] = {}
        self._pooled = PooledMean()
        self._offset = Normal(0.0, priors.ACCEPTANCE_VARIANCE)

    def level(self, subject: Subject) -> tuple[Level, float]:
        """The most specific level with draft tokens of its class, and its number of answers."""
        name = _name(subject)
        found = self._pooled.get(name)
        if found is not None:
            return Level.CLASS, found.weight
        own = (Level.PAIR, self._pooled.weight) if self._offsets else (Level.PRIOR, 0.0)
        return self._voice.level(name, own)

    def expect(self, subject: Subject) -> Normal:
        """The expected β of a request of this class."""
        name = _name(subject)
        offset = self._offsets.get(name) or self._voice.unseen(name, self._offset)
        mean = priors.class_acceptance(subject.cold_class) + offset.mean
        return Normal(min(max(mean, _LOWEST), _HIGHEST), offset.variance + _KINDS)

    def learn(self, subject: Subject, trials: Trials) -> None:
        """Records a request."""
        name = _name(subject)
        effective = trials.decided / (1.0 + trials.decided * _BETWEEN_REQUESTS)
        offset = trials.accepted / trials.decided - priors.class_acceptance(subject.cold_class)
        own = self._pooled.add(name, offset, effective * _BETWEEN_REQUESTS)
        variance = _NOISE / self._pooled.weight + priors.ACCEPTANCE_VARIANCE / self._pooled.classes
        pair = joined(Normal(self._pooled.mean, variance), Normal(0.0, _PAIRS))
        self._offset = Normal(pair.mean, priors.ACCEPTANCE_VARIANCE)
        alone = joined(Normal(own.mean, _NOISE / own.weight), self._offset)
        self._offsets[name] = self._voice.record(name, alone)


def _name(subject: Subject) -> str:
    return f"{subject.cold_class}/{subject.temperature}"
