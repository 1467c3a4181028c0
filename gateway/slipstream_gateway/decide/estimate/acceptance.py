"""Running estimate of the probability β that a draft token is accepted, given that all before it were.

A request's draft tokens are not independent trials, because requests differ. n of them count as n / (1 + n·ρ), with ρ
the share of the variance that lies between requests, so that one long answer does not imply certainty.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_gateway.decide.estimate.drift import KEPT_SAMPLES, SETTLED_SAMPLES, has_changed, surprise

_KEEP = 1.0 - 1.0 / 30.0
BETWEEN_REQUESTS = 0.02
_FLOOR = 0.01


class Beta(NamedTuple):
    """A mean in (0, 1) and its variance."""

    mean: float
    variance: float


_NOTHING = Beta(0.5, 0.25)


def effective_trials(trials: float) -> float:
    """The number of independent trials equivalent to `trials` draft tokens of one request."""
    return trials / (1.0 + trials * BETWEEN_REQUESTS)


def shrink(successes: float, trials: float, prior: Beta) -> Beta:
    """Posterior of a Beta prior with the mean and variance of `prior`."""
    mean = min(max(prior.mean, _FLOOR), 1.0 - _FLOOR)
    strength = max(mean * (1.0 - mean) / prior.variance - 1.0, 0.5)
    total = trials + strength
    posterior = (successes + strength * mean) / total
    return Beta(posterior, posterior * (1.0 - posterior) / (total + 1.0))


class Acceptance:
    """Effective trials and successes of one template; `posterior` is β."""

    __slots__ = ("_memory", "posterior", "samples", "successes", "trials")

    def __init__(self) -> None:
        self.samples = self.trials = self.successes = 0.0
        self._memory = 0.0
        self.posterior = _NOTHING

    def update(self, accepted: float, trials: float, prior: Beta) -> None:
        """Records a request with `accepted` of `trials` and refits. `prior` excludes this template's own data."""
        effective = effective_trials(trials)
        share = accepted / trials
        if self.samples >= SETTLED_SAMPLES:
            expected = self.posterior.mean
            deviation = math.sqrt(max(expected * (1.0 - expected), _FLOOR) / effective + self.posterior.variance)
            self._memory = surprise(self._memory, (share - expected) / deviation)
            if has_changed(self._memory):
                self._forget(min(1.0, KEPT_SAMPLES / self.samples))
                self._memory = 0.0
        self._forget(_KEEP)
        self.samples += 1.0
        self.trials += effective
        self.successes += effective * share
        self.posterior = shrink(self.successes, self.trials, prior)

    def _forget(self, keep: float) -> None:
        self.samples *= keep
        self.trials *= keep
        self.successes *= keep
