"""What takes a class back: the facts that are a verdict, in the words of the policy."""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_operator.analysis import ClassFacts, ErrorFacts, GuardFacts, Metric, Verdict
from slipstream_operator.analysis.metrics import EXCEEDANCE, WINSOR

RULES = {
    Metric.ERROR_RATE: "ErrorRate",
    Metric.ACCEPTANCE: "AcceptanceGuard",
    Metric.PARITY: "ParityGuard",
    Metric.P95: "P95Guard",
    Metric.TTFT: "TtftGuard",
    Metric.COST: "CostGuard",
}
REASONS = {
    "ErrorRate": "ErrorRateAboveThreshold",
    "AcceptanceGuard": "AcceptanceBelowThreshold",
    "ParityGuard": "QualityParityFailed",
    "P95Guard": "LatencyAboveThreshold",
    "TtftGuard": "TtftAboveThreshold",
    "CostGuard": "CostAboveThreshold",
}
"""A rollback's rule in decisions, and the reason of condition RolledBack that it gives."""


SILENCES = "silences"
"""The metric of decisions that are about no data, in place of one that is measured."""


class Numbers(NamedTuple):
    """What a decision was made by. `bound` is the confidence bound of a gain, or a guard's evidence: how many requests
    at the threshold it takes on average to see as much by chance; None where most requests failed. `threshold` is in
    the unit of `observed`. Of silences, `observed` is how many there were without a step between them."""

    metric: str
    observed: float | None
    bound: float | None
    threshold: float | None
    samples: int


NO_NUMBERS = Numbers("", None, None, None, 0)


class Trip(NamedTuple):
    """One verdict against a class, and the rule that made it."""

    rule: str
    numbers: Numbers
    message: str


def worst_trip(facts: ClassFacts, *, guards: bool) -> Trip | None:
    """The verdict to act on, errors first; None where there is none. `guards` False: errors alone."""
    if facts.errors.verdict is Verdict.FAIL:
        return _errors(facts.errors)
    failed = {guard.metric: guard for guard in facts.guards if guard.verdict is Verdict.FAIL}
    asked = Metric if guards else (Metric.ERROR_RATE,)
    return next((_guard(failed[metric]) for metric in asked if metric in failed), None)


def _errors(errors: ErrorFacts) -> Trip:
    rate = errors.failures / errors.requests
    message = f"{errors.failures} of {errors.requests} speculative requests failed, allowed are {errors.limit:.3g}"
    numbers = Numbers(Metric.ERROR_RATE.value, float(f"{rate:.4g}"), None, errors.limit, errors.requests)
    return Trip(RULES[Metric.ERROR_RATE], numbers, message)


def _guard(guard: GuardFacts) -> Trip:
    observed = guard.observed if guard.observed is not None else 0.0
    threshold = guard.limit
    if guard.metric is Metric.COST:  # back from winsorised shares of what it may be to an increase over the control
        observed = observed * WINSOR * (1.0 + guard.threshold) - 1.0
        threshold = guard.threshold
    evidence = math.exp(min(guard.statistic, 300.0))
    said = f"evidence {evidence:,.3g} reached the alarm at {math.exp(guard.alarm_at):,.0f}"
    numbers = Numbers(
        metric=guard.metric.value,
        observed=float(f"{observed:.4g}"),
        bound=float(f"{evidence:.4g}"),
        threshold=threshold,
        samples=guard.samples,
    )
    seen = "requests" if guard.metric is Metric.ERROR_RATE else "answers"
    message = f"{_words(guard, observed)} over the last {guard.samples} {seen}; {said}"
    return Trip(RULES[guard.metric], numbers, message)


def _words(guard: GuardFacts, observed: float) -> str:
    match guard.metric:
        case Metric.ERROR_RATE:
            return f"{observed:.1%} of the speculative requests failed, allowed are {guard.threshold:.3g},"
        case Metric.ACCEPTANCE:
            return f"acceptance {observed:.3f}, floor {guard.threshold:.3g},"
        case Metric.PARITY:
            return f"{observed:.1%} of the replayed answers differ, allowed are {guard.threshold:.3g},"
        case Metric.COST:
            return f"an answer costs {observed:+.1%} beside the control's, allowed is {guard.threshold:+.1%},"
        case Metric.TTFT:
            return f"{observed:.1%} waited longer than {guard.threshold:g} s for the first token ({EXCEEDANCE:.0%} may)"
        case _:
            return f"{observed:.1%} took longer than {guard.threshold:g} s ({EXCEEDANCE:.0%} may)"
