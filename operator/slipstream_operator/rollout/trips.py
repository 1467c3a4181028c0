"""The causes of a rollback: failed verdicts on a class, with messages."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import NamedTuple

from slipstream_operator.rollout.analysis.facts import ClassFacts, ErrorFacts, GuardFacts, Verdict
from slipstream_operator.rollout.analysis.metrics import EXCEEDANCE, Metric
from slipstream_operator.status.conditions import rfc3339

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
"""The reason of the condition RolledBack, by the rule of the decision."""


E2E_CHANGE = "e2eChange"
"""The metric of decisions about end-to-end times: the speculative answers' mean minus the control's mean, as a share of
the control's mean."""
TTFT_CHANGE = "ttftChange"
"""The metric of decisions about times to the first token, computed in the same way."""
SILENCES = "silences"
"""The metric of decisions about missing outcomes: the number of silences instead of a measurement."""


class Numbers(NamedTuple):
    """The numbers behind a decision.

    `bound` is the confidence bound of a gain, or the evidence of a guard: the average number of requests at the
    threshold until chance alone gives this evidence. It is None for the other rules: most requests failed, a higher
    cost, a longer time than the control's. `threshold` has the unit of `observed`. With the metric `silences`,
    `observed` is the number of silences without a promotion between them.
    """

    metric: str
    observed: float | None
    bound: float | None
    threshold: float | None
    samples: int


NO_NUMBERS = Numbers("", None, None, None, 0)


class Trip(NamedTuple):
    """One failed verdict on a class, and its rule."""

    rule: str
    numbers: Numbers
    message: str


def worst_trip(facts: ClassFacts, *, guards: bool) -> Trip | None:
    """The verdict to act on, errors first; None if no verdict failed. `guards` False: only errors are checked."""
    if facts.errors.verdict is Verdict.FAIL:
        return _errors(facts.errors)
    failed = {guard.metric: guard for guard in facts.guards if guard.verdict is Verdict.FAIL}
    asked = Metric if guards else (Metric.ERROR_RATE,)
    tripped = next((_guard(failed[metric]) for metric in asked if metric in failed), None)
    return tripped or (_slower(facts) if guards else None)


def _slower(facts: ClassFacts) -> Trip | None:
    """The verdict on a class that is slower than its control. It is checked last, since a failed guard explains the
    slowness."""
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
    """The number of failed requests, and the limit."""
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
    """The observed value of a guard, and its limit."""
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


def unchecked_words(parity: GuardFacts) -> str:
    """What is known of the checks of answers where they do not take place."""
    since = "" if parity.checked_s is None else f" since {rfc3339(datetime.fromtimestamp(parity.checked_s, UTC))}"
    return (
        f"no answer was compared with a plain one{since}; {parity.missed} that were drawn for it were not decoded again"
    )


def _of_control(guard: GuardFacts) -> str:
    if guard.control_observed is None:
        return ""
    return f" (of the control's {guard.control} requests {guard.control_observed:.1%} did)"


def _allowed(guard: GuardFacts) -> str:
    """The share of answers that may break a limit on times, and the share of the control's answers that breaks it."""
    if guard.control_observed is None:
        return f" ({EXCEEDANCE:.0%} may)"
    return f" ({EXCEEDANCE:.0%} may; of the control's {guard.control} answers {guard.control_observed:.1%} did)"
