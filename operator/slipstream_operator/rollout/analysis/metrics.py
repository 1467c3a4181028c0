"""The guarded metrics: each threshold of a class becomes a number x in [0, 1] per request, a limit of x, and bets.

The unit is the request and never the token. The tokens of an answer are correlated. A test that treats them as
independent detects drops that do not exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec
from slipstream_core.manifest.rollout import Thresholds

from slipstream_operator.rollout.analysis.guard import Guard, bets_of

EXCEEDANCE = 0.05
"""A p95 limit is kept if at most this share of the answers takes longer."""
MIN_PARITY_CHECKS = 1
MIN_ERROR_REQUESTS, MIN_FAILURES = 20, 10


class Metric(StrEnum):
    """The metrics that can roll back a class, by their names in the policy. If several fail, the first one is the
    cause."""

    ERROR_RATE = "errorRate"
    ACCEPTANCE = "acceptanceFloor"
    PARITY = "parityLoss"
    P95 = "p95Seconds"
    TTFT = "ttftP95Seconds"
    COST = "costIncrease"


# The λ of each guard. The best λ for a change of the mean by δ at variance σ² is δ/(σ² + δ²). For acceptance (σ about
# 0.2), λ = 1 is the best for a drop of 0.05, and λ = 2 for a drop of 0.12. For a limit that 5 % may exceed, λ = 0.7 is
# the best if 1.7 times as many exceed it, and λ = 2 if three times as many do. A single large λ misses small changes,
# and a single small λ detects large changes late. Larger λ detect very large changes a little earlier: with 4 instead
# of 2, four times as many are detected after 62 answers instead of 73. They raise several times as many false alarms
# close to the threshold (figures: tests/benchmarks/rollback.py). A third bet of 6 on errors would detect a server that
# suddenly fails all requests after 6 requests instead of 10. It would also raise an alarm for 1.3 % of healthy classes
# instead of 0.2 %. Cost is compared with the control's cost of the same time, without bets.
_BETS: dict[Metric, tuple[float, ...]] = {
    Metric.ERROR_RATE: (0.7, 2.0),
    Metric.ACCEPTANCE: (1.0, 2.0),
    Metric.PARITY: (0.7, 2.0),
    Metric.P95: (0.7, 2.0),
    Metric.TTFT: (0.7, 2.0),
    Metric.COST: (),
}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a broken limit with the control.

    At the log likelihood ratio `blame_at` or above, the control breaks the limit less often, so speculation is the
    cause. After `alone_after` failures without one of the control at the same time, the limit alone decides: the
    control is a few percent of the requests, and its answers would come late. None: it never decides alone.
    """

    blame_at: float
    alone_after: int | None = None


SHARED_AT = -math.log(100.0)
"""At this log likelihood ratio or below, the control breaks a limit as often, so the servers are the cause."""
# Times require more evidence against speculation, because the test is repeated in each period of busy servers. Errors
# require less, because a failed request costs more than a slow one.
_TIMES = Comparison(blame_at=math.log(10_000.0))
_ERRORS = Comparison(blame_at=math.log(100.0), alone_after=MIN_FAILURES)
COMPARED: Mapping[Metric, Comparison] = MappingProxyType(
    {Metric.ERROR_RATE: _ERRORS, Metric.P95: _TIMES, Metric.TTFT: _TIMES}
)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one guard.

    `threshold` is the policy's value, and `limit` is the limit of the mean of x. `compared` is set if busy or broken
    servers break the limit, too: the control's answers are then compared before a rollback. None: no comparison.
    """

    metric: Metric
    threshold: float
    limit: float
    floor: bool
    bets: tuple[float, ...]
    min_samples: int
    compared: Comparison | None

    def excess(self, x: float) -> float:
        """The distance of `x` beyond the limit; below 0 if `x` keeps to the limit."""
        return self.limit - x if self.floor else x - self.limit

    def bet(self, guard: Guard, x: float, *, alarm_at: float, latched: bool) -> None:
        """Add a request to the guard of this rule."""
        guard.add(x, self.excess(x), self.bets, alarm_at=alarm_at, min_samples=self.min_samples, latched=latched)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a class now, computed once per change and looked up per request. `controlled`: some requests of the
    class are the control. `ttft_increase` is the threshold of that name."""

    rules: tuple[Rule, ...]
    error_rate: float
    alarm_at: float
    window_seconds: int
    min_samples: int
    margin: float
    confidence: float
    controlled: bool
    ttft_increase: float | None = None

    def rule(self, metric: Metric) -> Rule | None:
        """The guard's rule; None where the policy does not guard this metric."""
        return next((rule for rule in self.rules if rule.metric is metric), None)


def stricter(thresholds: Thresholds, share: float) -> Thresholds:
    """The thresholds of a retry: each one is stricter by `share` of itself. A floor rises at most half the way to 1."""
    floor = thresholds.acceptance_floor
    less = 1.0 - share
    return Thresholds(
        acceptance_floor=None if floor is None else min(floor * (1.0 + share), (floor + 1.0) / 2.0),
        p95_seconds=_times(thresholds.p95_seconds, less),
        ttft_p95_seconds=_times(thresholds.ttft_p95_seconds, less),
        ttft_increase=_times(thresholds.ttft_increase, less),
        cost_increase=_times(thresholds.cost_increase, less),
        parity_loss=_times(thresholds.parity_loss, less),
        error_rate=_times(thresholds.error_rate, less),
    )


def rules_of(thresholds: Thresholds, *, min_samples: int) -> tuple[Rule, ...]:
    """The rules of the guards for `thresholds`.

    The x of a request is, for errors, 1 if it failed; for acceptance, accepted ÷ draft tokens; for the two p95, 1 if it
    took longer; for parity, 1 if the answer differed. Cost has no x: see `ClassRecord`.
    """
    wanted = (
        (Metric.ERROR_RATE, thresholds.error_rate, thresholds.error_rate, MIN_ERROR_REQUESTS),
        (Metric.ACCEPTANCE, thresholds.acceptance_floor, None, min_samples),
        (Metric.PARITY, thresholds.parity_loss, thresholds.parity_loss, MIN_PARITY_CHECKS),
        (Metric.P95, thresholds.p95_seconds, EXCEEDANCE, min_samples),
        (Metric.TTFT, thresholds.ttft_p95_seconds, EXCEEDANCE, min_samples),
        (Metric.COST, thresholds.cost_increase, thresholds.cost_increase, min_samples),
    )
    rules = []
    for metric, threshold, cap, fewest in wanted:
        if threshold is None:
            continue
        floor = cap is None
        limit = threshold if cap is None else cap
        rules.append(
            Rule(
                metric=metric,
                threshold=threshold,
                limit=limit,
                floor=floor,
                # With a cap of 0, the first answer above it is proof. Any λ that causes an alarm at once is sufficient.
                bets=bets_of(_BETS[metric], limit=limit, floor=floor) if limit > 0.0 or floor else (math.exp(40.0),),
                min_samples=fewest,
                compared=COMPARED.get(metric) if limit > 0.0 else None,
            )
        )
    return tuple(rules)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
