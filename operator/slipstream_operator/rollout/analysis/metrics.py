"""The guarded metrics: each threshold of a class becomes a number in [0, 1] per request, a limit and bets.

The unit is the request, never the token: the tokens of an answer are correlated, and a test that treats them as
independent finds a drop where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec
from slipstream_core.manifest.rollout import Thresholds

from slipstream_operator.rollout.analysis.guard import bets_of

EXCEEDANCE = 0.05
"""A p95 holds where at most this share of the answers takes longer."""
MIN_PARITY_CHECKS = 1
MIN_ERROR_REQUESTS, MIN_FAILURES = 20, 10


class Metric(StrEnum):
    """The metrics that can roll back a class, by their names in the policy, in the order of blame."""

    ERROR_RATE = "errorRate"
    ACCEPTANCE = "acceptanceFloor"
    PARITY = "parityLoss"
    P95 = "p95Seconds"
    TTFT = "ttftP95Seconds"
    COST = "costIncrease"


# The λ of each guard. The best for a change of the mean by δ at variance σ² is δ/(σ² + δ²): for acceptance (σ about
# 0.2) 1 is for a drop of 0.05 and 2 for one of 0.12; for a share of 5 % that is exceeded, 0.7 is for 1.7 times and 2
# for three times as many. One alone is blind for small changes where it is large and late for large ones where it is
# small. Larger ones find what is very bad a little earlier (4 in place of 2: 62 in place of 73 answers for four times
# as many) and raise several times as many false alarms close to the threshold; tests/benchmarks/rollback.py has the
# figures. With a third bet of 6 on errors, a server that fails all at once is seen after 6 requests in place of 10, and
# 1.3 % of healthy classes in place of 0.2 %. Cost is compared with the control's of the same time, without bets.
_BETS: dict[Metric, tuple[float, ...]] = {
    Metric.ERROR_RATE: (0.7, 2.0),
    Metric.ACCEPTANCE: (1.0, 2.0),
    Metric.PARITY: (0.7, 2.0),
    Metric.P95: (0.7, 2.0),
    Metric.TTFT: (0.7, 2.0),
    Metric.COST: (),
}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How a broken limit is compared with the control. From the log likelihood ratio `blame_at` on, the control breaks
    it less often, so that speculation is the cause. After `alone_after` failures without any answer of the control at
    the same time, the limit alone decides; None: it never does."""

    blame_at: float
    alone_after: int | None = None


SHARED_AT = -math.log(100.0)
"""Up to this log likelihood ratio, the control breaks a limit as often, so that the servers are the cause."""
# The evidence against speculation is high for times, because the test is made again in each period of busy servers. For
# errors it is lower, because a failed request costs more than a slow one.
_TIMES = Comparison(blame_at=math.log(10_000.0))
_ERRORS = Comparison(blame_at=math.log(100.0), alone_after=MIN_FAILURES)
COMPARED: Mapping[Metric, Comparison] = MappingProxyType(
    {Metric.ERROR_RATE: _ERRORS, Metric.P95: _TIMES, Metric.TTFT: _TIMES}
)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one guard. `threshold` is the policy's, `limit` is that of the mean of x. `compared`: busy or
    broken servers break the limit, too, so that the control's answers are compared before a rollback; None: they are
    not."""

    metric: Metric
    threshold: float
    limit: float
    floor: bool
    bets: tuple[float, ...]
    min_samples: int
    compared: Comparison | None

    def excess(self, x: float) -> float:
        """How far `x` is on the wrong side of the limit; below 0 where it is on the right one."""
        return self.limit - x if self.floor else x - self.limit


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a class is held to now, made once per change and looked up per request. `controlled`: some of the class's
    requests are the control's. `ttft_increase` is the threshold of that name."""

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
    """What a retry is held to: each threshold stricter by `share` of itself, a floor up to half the way to 1."""
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
    """The guards that `thresholds` ask for. x per request is, for errors, 1 where it failed; for acceptance, accepted
    over drafted; for the two p95 and parity, 1 where the answer took longer or differed. Cost has no x:
    see `ClassRecord`."""
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
                # With a cap of 0 the first answer above it is proof: any bet will do, so long as it wins at once.
                bets=bets_of(_BETS[metric], limit=limit, floor=floor) if limit > 0.0 or floor else (math.exp(40.0),),
                min_samples=fewest,
                compared=COMPARED.get(metric) if limit > 0.0 else None,
            )
        )
    return tuple(rules)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
