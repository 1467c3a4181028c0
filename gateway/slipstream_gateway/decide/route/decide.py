"""The decision on a request: its arm, its draft length and the reason, step by step as in the design.

Pure: the same request, profile, route, forecast, draws and health give the same decision. Each step returns a choice or
None to continue; the first choice wins.
"""

from __future__ import annotations

from slipstream_core.types import BY_SAVING, TREATMENT, Arm, Decision, Reason

from slipstream_gateway.decide.route import break_even, guards
from slipstream_gateway.decide.route.case import ArmChoice, Case, DecisionInputs, make_case
from slipstream_gateway.decide.route.numbers import Numbers
from slipstream_gateway.decide.route.refusals import check_bounds
from slipstream_gateway.decide.route.steps import compared, first_choice, is_alarmed


def decide(inputs: DecisionInputs) -> Decision:
    """The arm, the draft length and the reason for a request. Without a forecast the policy's rules decide.

    Raises:
        UnsupportedParameter: no permitted arm can honour one of the request's parameters.
        InvalidRequest: a value is beyond the pair's bounds, or the client asked for a draft length that the pair does
            not support.
    """
    check_bounds(inputs.request, inputs.route)
    case = make_case(inputs)
    case = break_even.under_pressure(case)
    guards.check_state(case.features, inputs.route)
    choice = compared(case, first_choice(case))
    return Decision(
        arm=choice.arm,
        reason=choice.reason,
        request_class=case.request_class,
        draft_length=choice.draft_length,
        detail=choice.detail,
        numbers=Numbers(case),
        saving_s=case.saving.saving_s if case.saving is not None and case.is_timed else None,
        unconditional=_is_unconditional(case, choice),
        adaptive=case.is_adaptive and choice.draft_length > 0 and not _is_clients_length(case, choice),
        alarmed=(choice.arm is Arm.CONTROL or choice.reason in TREATMENT) and is_alarmed(case),
        protected=choice.arm is not Arm.CONTROL and case.spec.protect == "latency",
    )


def _is_clients_length(case: Case, choice: ArmChoice) -> bool:
    return choice.reason is Reason.CLIENT_ASKED and case.request.draft_length is not None


def _is_unconditional(case: Case, choice: ArmChoice) -> bool:
    """Whether the request would speculate whatever its neighbours do: by the client's choice, or because it pays
    alone."""
    if choice.arm is not Arm.SPECULATIVE or choice.reason is Reason.EXPLORATION:
        return False
    return choice.reason not in BY_SAVING or case.saving is None or case.saving.pays_alone
