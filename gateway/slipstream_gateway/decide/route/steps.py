"""The steps of a decision in their order, and which share of the requests is drawn for a comparison."""

from __future__ import annotations

from collections.abc import Callable

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
    return _control(Reason.HOLD_BACK, "held back for comparison", choice)


def _control(reason: Reason, why: str, choice: ArmChoice) -> ArmChoice:
    detail = f"{why}; otherwise it would speculate with drafts of {choice.draft_length}"
    return ArmChoice(Arm.CONTROL, reason, detail)


def hold_back_share(case: Case) -> float:
    """The operator's share for the class, which follows its evidence; without one, the policy's."""
    raised = case.standing.hold_back_share if case.standing is not None else None
    return case.spec.hold_back_share if raised is None else raised
