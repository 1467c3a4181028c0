"""The decision on a request: its arm, its draft length and the reason, step by step as in the design.

Pure: the same request, profile, route, forecast, draws and health give the same decision. Each step returns a choice or
None to continue; the first choice wins.
"""

from __future__ import annotations

from slipstream_core.manifest import Route
from slipstream_core.observation import Draws, Forecast
from slipstream_core.types import Arm, Decision, GenerationRequest, Reason, RequestProfile

from slipstream_gateway.decide.route import guards, saving
from slipstream_gateway.decide.route.case import ArmChoice, Case, Health, make_case
from slipstream_gateway.decide.route.numbers import Numbers
from slipstream_gateway.decide.route.pressure import SHRINK_FROM

_UP = Health()
_HELD_BACK = (Reason.SPECULATION_PAYS, Reason.CLASS_ENABLED)
_EXPLORED = (Reason.BREAK_EVEN, Reason.UNKNOWN_CLASS)


def decide(
    request: GenerationRequest,
    profile: RequestProfile,
    route: Route,
    *,
    forecast: Forecast | None,
    draws: Draws,
    health: Health = _UP,
    pressure: float = 0.0,
) -> Decision:
    """The arm, the draft length and the reason for `request`. Without a forecast the policy's rules decide.

    `pressure` in [0, 1] is the pair's; see `routing.pressure`.

    Raises:
        UnsupportedParameter: no permitted arm can honour one of the request's parameters.
        InvalidRequest: the client asked for a draft length that the pair does not support.
    """
    case = make_case(request, profile, route, forecast=forecast, draws=draws, health=health, pressure=pressure)
    case = saving.under_pressure(case)
    features = request.features | {"n"} if request.n > 1 else request.features
    guards.check_state(features, route)
    missing_plain = route.plain_for(features).capabilities.missing(features)
    choice = guards.switches(case)
    if choice is not None and missing_plain:
        raise guards.unsupported(missing_plain[0], route)
    choice = (
        choice
        or guards.capabilities(case, features, missing_plain)
        or guards.client_mode(case)
        or guards.class_rule(case)
        or guards.unknown_class(case)
        or guards.thresholds(case)
        or saving.by_saving(case)
    )
    if choice.reason in _EXPLORED:
        choice = _explored(case, choice)
    elif choice.reason in _HELD_BACK:
        # Before any draw for a comparison: otherwise requests that wait under pressure would count for one arm alone.
        choice = saving.shed(case, choice) or _not_reached(case, choice) or _held_back(case, choice)
    return Decision(
        arm=choice.arm,
        reason=choice.reason,
        request_class=case.request_class,
        draft_length=choice.draft_length,
        detail=choice.detail,
        numbers=Numbers(case),
        saving_s=case.saving.saving_s if case.saving is not None else None,
        unconditional=_is_unconditional(case, choice),
    )


def _is_unconditional(case: Case, choice: ArmChoice) -> bool:
    """Whether the request would speculate whatever its neighbours do: by the client's choice, or because it pays
    alone."""
    if choice.arm is not Arm.SPECULATIVE or choice.reason is Reason.EXPLORATION:
        return False
    return choice.reason is not Reason.SPECULATION_PAYS or case.saving is None or case.saving.pays_alone


def _explored(case: Case, choice: ArmChoice) -> ArmChoice:
    """`choice`, or exploration instead. The policy's thresholds apply to an unknown class as well. A class whose share
    is 0 is not explored, and no class is explored while places are scarce."""
    if case.pressure > SHRINK_FROM:
        return choice
    if case.standing is not None and case.standing.share <= 0.0:
        return choice
    if choice.reason is Reason.UNKNOWN_CLASS and (case.saving is None or guards.thresholds(case) is not None):
        return choice
    return saving.explored(case) or choice


def _not_reached(case: Case, choice: ArmChoice) -> ArmChoice | None:
    """Before step 6: requests beyond the share of the class's rollout decode plainly. They are selected by a draw, so
    that they are as good a control as held-back ones. A policy's rule for the class takes precedence over a rollout."""
    standing = case.standing
    if standing is None or choice.reason is not Reason.SPECULATION_PAYS or case.draws.rollout < standing.share:
        return None
    reached = f"{100 * standing.share:g}% of {case.request_class} speculate at this step of the rollout"
    detail = f"{reached}; otherwise it would speculate with drafts of {choice.draft_length}"
    return ArmChoice(Arm.CONTROL, Reason.ROLLOUT, detail)


def _held_back(case: Case, choice: ArmChoice) -> ArmChoice:
    """Step 6: a share of the requests that would speculate decodes plainly, for comparison."""
    share = case.numbers["hold_back_share"] = _hold_back_share(case)
    if case.draws.hold_back >= share:
        return choice
    detail = f"held back for comparison; otherwise it would speculate with drafts of {choice.draft_length}"
    return ArmChoice(Arm.CONTROL, Reason.HOLD_BACK, detail)


def _hold_back_share(case: Case) -> float:
    """The operator's share for the class, which follows its evidence; without one, the policy's."""
    if case.standing is not None and case.standing.hold_back_share is not None:
        return case.standing.hold_back_share
    return case.spec.hold_back_share if case.spec is not None else 0.0
