"""What is guarded: how each threshold of a class becomes a number in [0, 1] per request, a limit and bets.

The request is the unit, never the token: the tokens of an answer go together, and a test that takes them for
independent finds a drop where there is none.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec
from slipstream_gateway.manifest.rollout import Thresholds

from slipstream_operator.analysis.guard import bets_of

EXCEEDANCE = 0.05
"""A p95 holds where at most this share of the answers takes longer."""
WINSOR = 4.0
"""A cost counts up to this many times what it may be: one endless answer is no evidence of many."""
MIN_PARITY_CHECKS = 1
MIN_ERROR_REQUESTS = 20


class Metric(StrEnum):
    """What can take a class back, in the words of the policy; the order is that of blame."""

    ERROR_RATE = "errorRate"
    ACCEPTANCE = "acceptanceFloor"
    PARITY = "parityLoss"
    P95 = "p95Seconds"
    TTFT = "ttftP95Seconds"
    COST = "costIncrease"


# The λ of each guard. The best for a change of the mean by δ at variance σ² is δ/(σ² + δ²): for acceptance (σ about
# 0.2) 1 is for a drop of 0.05 and 2 for one of 0.12; for a share of 5 % that is exceeded, 0.7 is for 1.7 times and 2
# for three times as many; for cost (winsorised, over 4) 0.5 and 1.5 are for 10 % and 35 % more. One alone is blind for
# small changes where it is large and late for large ones where it is small. Larger ones find what is very bad a little
# earlier (4 in place of 2: 62 in place of 73 answers for four times as many) and raise several times as many false
# alarms close to the threshold; tests/benchmarks/rollback.py has the figures. With a third bet of 6 on errors, a server
# that fails all at once is seen after 6 requests in place of 10, and 1.3 % of healthy classes in place of 0.2 %.
_BETS: dict[Metric, tuple[float, ...]] = {
    Metric.ERROR_RATE: (0.7, 2.0),
    Metric.ACCEPTANCE: (1.0, 2.0),
    Metric.PARITY: (0.7, 2.0),
    Metric.P95: (0.7, 2.0),
    Metric.TTFT: (0.7, 2.0),
    Metric.COST: (0.5, 1.5),
}


COMPARED = frozenset({Metric.P95, Metric.TTFT})


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How one guard is fed. `threshold` is the policy's, `limit` what the mean of x is held to. `compared`: busy
    servers break it, too, so that the control's answers are compared before a rollback."""

    metric: Metric
    threshold: float
    limit: float
    floor: bool
    bets: tuple[float, ...]
    min_samples: int
    compared: bool

    def excess(self, x: float) -> float:
        """How far `x` is on the wrong side of the limit; below 0 where it is on the right one."""
        return self.limit - x if self.floor else x - self.limit


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a class is held to now, made once per change and looked up per request. `controlled`: some of the class's
    requests are the control's."""

    rules: tuple[Rule, ...]
    error_rate: float
    alarm_at: float
    window_seconds: int
    min_samples: int
    margin: float
    confidence: float
    controlled: bool

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
        cost_increase=_times(thresholds.cost_increase, less),
        parity_loss=_times(thresholds.parity_loss, less),
        error_rate=_times(thresholds.error_rate, less),
    )


def rules_of(thresholds: Thresholds, *, min_samples: int) -> tuple[Rule, ...]:
    """The guards that `thresholds` ask for. x per request is, for errors, 1 where it failed; for acceptance, accepted
    over drafted; for the two p95 and parity, 1 where the answer took longer or differed; for cost, see
    `ClassRecord`."""
    wanted = (
        (Metric.ERROR_RATE, thresholds.error_rate, thresholds.error_rate, MIN_ERROR_REQUESTS),
        (Metric.ACCEPTANCE, thresholds.acceptance_floor, None, min_samples),
        (Metric.PARITY, thresholds.parity_loss, thresholds.parity_loss, MIN_PARITY_CHECKS),
        (Metric.P95, thresholds.p95_seconds, EXCEEDANCE, min_samples),
        (Metric.TTFT, thresholds.ttft_p95_seconds, EXCEEDANCE, min_samples),
        (Metric.COST, thresholds.cost_increase, 1.0 / WINSOR, min_samples),
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
                compared=metric in COMPARED,
            )
        )
    return tuple(rules)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
