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
# The weight of other temperatures or context lengths of the same template, in effective trials.
_OTHER_BUCKETS_TRIALS = 25.0
_MAX_BUCKETS = 8
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
    """Effective trials and successes of one template, over all (temperature, context) buckets and, if there are
    several, per bucket."""

    __slots__ = ("_buckets", "_first", "_memory", "overall", "samples", "successes", "trials")

    def __init__(self) -> None:
        self.samples = self.trials = self.successes = 0.0
        self._memory = 0.0
        self.overall = _NOTHING
        self._first = -1
        self._buckets: dict[int, tuple[float, float]] | None = None

    def update(self, bucket: int, accepted: float, trials: float, prior: Beta) -> None:
        """Records a request with `accepted` of `trials` and refits. `prior` excludes this template's own data."""
        effective = effective_trials(trials)
        share = accepted / trials
        if self.samples >= SETTLED_SAMPLES:
            expected = self.overall.mean
            deviation = math.sqrt(max(expected * (1.0 - expected), _FLOOR) / effective + self.overall.variance)
            self._memory = surprise(self._memory, (share - expected) / deviation)
            if has_changed(self._memory):
                self._forget(min(1.0, KEPT_SAMPLES / self.samples))
                self._memory = 0.0
        self._forget(_KEEP)
        self._note_bucket(bucket, effective * share, effective)
        self.samples += 1.0
        self.trials += effective
        self.successes += effective * share
        self.overall = shrink(self.successes, self.trials, prior)

    def posterior(self, bucket: int) -> Beta:
        """β at `bucket`; β over all buckets if this one has no data."""
        counts = self._buckets.get(bucket) if self._buckets is not None else None
        if counts is None:
            return self.overall
        mean = self.overall.mean
        loose = max(mean * (1.0 - mean) / (_OTHER_BUCKETS_TRIALS + 1.0), self.overall.variance)
        return shrink(counts[0], counts[1], Beta(mean, loose))

    def _forget(self, keep: float) -> None:
        self.samples *= keep
        self.trials *= keep
        self.successes *= keep
        if self._buckets is not None:
            for bucket, (successes, trials) in self._buckets.items():
                self._buckets[bucket] = successes * keep, trials * keep

    def _note_bucket(self, bucket: int, successes: float, trials: float) -> None:
        """Most templates have one bucket, which then equals the whole."""
        if self._first < 0:
            self._first = bucket
        if self._buckets is None:
            if bucket == self._first:
                return
            self._buckets = {self._first: (self.successes, self.trials)}
        buckets = self._buckets
        if bucket not in buckets and len(buckets) >= _MAX_BUCKETS:
            del buckets[min(buckets, key=lambda key: buckets[key][1])]
        before = buckets.get(bucket, (0.0, 0.0))
        buckets[bucket] = before[0] + successes, before[1] + trials
