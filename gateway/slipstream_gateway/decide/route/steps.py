"""The steps of a decision in their order, and which share of the requests is drawn for a comparison."""

from __future__ import annotations

from collections.abc import Callable

from slipstream_core.manifest.status import Phase
from slipstream_core.types import BY_SAVING, TREATMENT, Arm, Reason

from slipstream_gateway.decide.route import break_even, guards
from slipstream_gateway.decide.route.case import ArmChoice, Case
from slipstream_gateway.decide.route.pressure import SHRINK_FROM

STEPS: tuple[Callable[[Case], ArmChoice | None], ...] = (
    guards.switches,
    guards.capabilities,
    guards.client_mode,
    guards.class_rule,
    guards.unknown_class,
    *guards.THRESHOLDS,
)
ALARM_SHARE = 0.75
"""The control's share of the requests with an alarm: few speculative answers suffice to compare them."""
_EXPLORED = (Reason.BREAK_EVEN, Reason.COST, Reason.UNKNOWN_CLASS)


def first_choice(case: Case) -> ArmChoice:
    """The choice of the first step that makes one, else the break-even's."""
    for step in STEPS:
        choice = step(case)
        if choice is not None:
            return choice
    return break_even.by_saving(case)


def compared(case: Case, choice: ArmChoice) -> ArmChoice:
    """`choice`, or what pressure, a rollout, a comparison or exploration makes of it."""
    if choice.reason in _EXPLORED:
        return break_even.explored(case) or choice if _is_explorable(case, choice) else choice
    if choice.reason in TREATMENT:
        # Pressure first: otherwise requests that wait under it would count for one arm alone.
        return break_even.shed(case, choice) or _not_reached(case, choice) or _held_back(case, choice)
    return choice


def _is_explorable(case: Case, choice: ArmChoice) -> bool:
    """Whether a request with this choice may explore. The policy's thresholds apply to an unknown class as well. A
    class whose share is 0 is not explored, and no class is explored while places are scarce."""
    if case.pressure > SHRINK_FROM or (case.standing is not None and case.standing.share <= 0.0):
        return False
    return choice.reason is not Reason.UNKNOWN_CLASS or all(step(case) is None for step in guards.THRESHOLDS)


def _not_reached(case: Case, choice: ArmChoice) -> ArmChoice | None:
    """The control, if the request lies beyond the share of its class's rollout. It is selected by a draw, so that it is
    as good a control as a held-back one. A policy's rule for the class takes precedence over a rollout."""
    standing = case.standing
    if standing is None or choice.reason not in BY_SAVING or case.draws.rollout < standing.share:
        return None
    reached = f"{100 * standing.share:g}% of {case.request_class} speculate at this step of the rollout"
    return _control(Reason.ROLLOUT, reached, choice)


def _held_back(case: Case, choice: ArmChoice) -> ArmChoice:
    """Step 6: a share of the requests that would speculate decodes plainly, for comparison."""
    if case.draws.hold_back >= hold_back_share(case):
        return choice
    why = "an alarm: speculative answers may be slower" if is_alarmed(case) else "comparison"
    return _control(Reason.HOLD_BACK, f"held back for {why}", choice)


def _control(reason: Reason, why: str, choice: ArmChoice) -> ArmChoice:
    detail = f"{why}; otherwise it would speculate with drafts of {choice.draft_length}"
    return ArmChoice(Arm.CONTROL, reason, detail)


def hold_back_share(case: Case) -> float:
    """The share of the class's alarm, if that is larger than the usual one."""
    return max(_usual_share(case), _alarm_share(case))


def is_alarmed(case: Case) -> bool:
    """Whether the hold-back is that of an alarm. Such requests are compared with each other, since their arms were
    drawn with other probabilities than those of the other requests."""
    return _alarm_share(case) > _usual_share(case)


def _usual_share(case: Case) -> float:
    """The operator's share for the class, which follows its evidence; without one, the policy's."""
    raised = case.standing.hold_back_share if case.standing is not None else None
    return case.spec.hold_back_share if raised is None else raised


def _alarm_share(case: Case) -> float:
    """With an alarm, the control is `ALARM_SHARE` of the requests, or `maxHoldBackShare` of them if the policy has one.
    0 without an alarm or an operator, and where the rollout's own control is as large. No evidence of times takes back
    a class that a rule enables. A class whose answers are not compared yet has an alarm while the operator has not
    shown its gain."""
    spec, standing, forecast = case.spec, case.standing, case.forecast
    if standing is None or forecast is None or forecast.alarm is False or not spec.hold_back_share:
        return 0.0
    is_shown = standing.hold_back_share is not None and standing.hold_back_share <= spec.hold_back_share
    if standing.phase is Phase.ENABLED or standing.share <= 1.0 - ALARM_SHARE or (forecast.alarm is None and is_shown):
        return 0.0
    most = 1.0 if spec.max_hold_back_share is None else spec.max_hold_back_share
    return min(1.0 - (1.0 - ALARM_SHARE) / standing.share, most)
