"""The causes of a rollback: verdicts against a class, with messages."""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_operator.rollout.analysis import ClassFacts, ErrorFacts, GuardFacts, Metric, Verdict
from slipstream_operator.rollout.analysis.metrics import EXCEEDANCE

RULES = {
    Metric.ERROR_RATE: "ErrorRate",
    Metric.ACCEPTANCE: "AcceptanceGuard",
    Metric.PARITY: "ParityGuard",
    Metric.P95: "P95Guard",
    Metric.TTFT: "TtftGuard",
    Metric.COST: "CostGuard",
}
SLOWER = "ControlGuard"
SLOWER_TTFT = "TtftControlGuard"
REASONS = {
    "ErrorRate": "ErrorRateAboveThreshold",
    "AcceptanceGuard": "AcceptanceBelowThreshold",
    "ParityGuard": "QualityParityFailed",
    "P95Guard": "LatencyAboveThreshold",
    "TtftGuard": "TtftAboveThreshold",
    "CostGuard": "CostAboveThreshold",
    SLOWER: "SlowerThanControl",
    SLOWER_TTFT: "TtftSlowerThanControl",
}
"""A rollback's rule in decisions, and the reason of condition RolledBack that it gives."""


E2E_CHANGE = "e2eChange"
"""The metric of decisions about the speculative answers' time beside the control's, as a share of the latter."""
TTFT_CHANGE = "ttftChange"
"""The same of the time to the first token."""
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
    tripped = next((_guard(failed[metric]) for metric in asked if metric in failed), None)
    return tripped or (_slower(facts) if guards else None)


def _slower(facts: ClassFacts) -> Trip | None:
    """This check is the last one, since a failed guard explains why the class is slower."""
    for rule, metric, what, loss in (
        (SLOWER, E2E_CHANGE, "speculative answers take", facts.loss),
        (SLOWER_TTFT, TTFT_CHANGE, "the first tokens of speculative answers take", facts.ttft_loss),
    ):
        if loss is not None:
            message = (
                f"{what} {loss.change:+.1%} compared with the control's of the same period, the limit is "
                f"{loss.threshold:+.1%} ({loss.speculative} and {loss.control} answers)"
            )
            observed, threshold = float(f"{loss.change:.4g}"), float(f"{loss.threshold:.4g}")
            return Trip(rule, Numbers(metric, observed, None, threshold, loss.speculative + loss.control), message)
    return None


def error_words(errors: ErrorFacts) -> str:
    """The failed requests, and the limit."""
    said = f"{errors.failures} of {errors.requests} speculative requests failed, the limit is {errors.limit:.3g}"
    if not errors.control_requests:
        return said
    return f"{said} (of the control's {errors.control_requests} requests {errors.control_failures} did)"


def _errors(errors: ErrorFacts) -> Trip:
    rate, message = errors.failures / errors.requests, error_words(errors)
    numbers = Numbers(Metric.ERROR_RATE.value, float(f"{rate:.4g}"), None, errors.limit, errors.requests)
    return Trip(RULES[Metric.ERROR_RATE], numbers, message)


def _guard(guard: GuardFacts) -> Trip:
    if guard.metric is Metric.COST:
        return _dearer(guard)
    observed = guard.observed if guard.observed is not None else 0.0
    evidence = math.exp(min(guard.statistic, 300.0))
    said = f"evidence {evidence:,.3g} reached the alarm at {math.exp(guard.alarm_at):,.0f}"
    numbers = Numbers(
        metric=guard.metric.value,
        observed=float(f"{observed:.4g}"),
        bound=float(f"{evidence:.4g}"),
        threshold=guard.limit,
        samples=guard.samples,
    )
    seen = "requests" if guard.metric is Metric.ERROR_RATE else "answers"
    message = f"{words(guard)} over the last {guard.samples} {seen}; {said}"
    return Trip(RULES[guard.metric], numbers, message)


def _dearer(guard: GuardFacts) -> Trip:
    observed = float(f"{guard.observed or 0.0:.4g}")
    numbers = Numbers(guard.metric.value, observed, None, guard.threshold, guard.samples + guard.control)
    return Trip(RULES[guard.metric], numbers, f"{words(guard)} ({guard.samples} and {guard.control} answers)")


def words(guard: GuardFacts) -> str:
    """The observation of a guard, and its limit."""
    observed = guard.observed if guard.observed is not None else 0.0
    match guard.metric:
        case Metric.ERROR_RATE:
            said = f"{observed:.1%} of the speculative requests failed, the limit is {guard.threshold:.3g}"
            return f"{said}{_of_control(guard)},"
        case Metric.ACCEPTANCE:
            return f"acceptance {observed:.3f}, floor {guard.threshold:.3g},"
        case Metric.PARITY:
            return f"{observed:.1%} of the replayed answers differ, the limit is {guard.threshold:.3g},"
        case Metric.COST:
            return (
                f"speculative answers cost {observed:+.1%} compared with the control's of the same period, the limit "
                f"is {guard.threshold:+.1%}"
            )
        case Metric.TTFT:
            return f"{observed:.1%} waited longer than {guard.threshold:g} s for the first token{_allowed(guard)}"
        case _:
            return f"{observed:.1%} took longer than {guard.threshold:g} s{_allowed(guard)}"


def _of_control(guard: GuardFacts) -> str:
    if guard.control_observed is None:
        return ""
    return f" (of the control's {guard.control} requests {guard.control_observed:.1%} did)"


def _allowed(guard: GuardFacts) -> str:
    """The share that may break a limit on times, and the control's share that does."""
    if guard.control_observed is None:
        return f" ({EXCEEDANCE:.0%} may)"
    return f" ({EXCEEDANCE:.0%} may; of the control's {guard.control} answers {guard.control_observed:.1%} did)"
