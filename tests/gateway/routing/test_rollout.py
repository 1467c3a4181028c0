"""A class that the operator promotes step by step, or has taken back: who may speculate, and what says so."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.manifest import ClassStanding, Route, Standing
from slipstream_core.manifest.status import Phase
from slipstream_core.observation import Draws, Forecast
from slipstream_core.types import (
    Arm,
    Decision,
    Endpoint,
    Mode,
    Reason,
)
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, Health, decide, explanation

from tests.gateway.routing import cases
from tests.gateway.routing.cases import forecast, profile, request
from tests.support.draws import chosen_draws, draws_of

CLASS = "summarization/long"
LUCKY = chosen_draws(exploration=0.0, rollout=0.0)
PAYS, UNCERTAIN = forecast(), forecast(acceptance=0.3, doubt=0.3)


def standing(
    phase: Phase, share: float = 0.0, message: str = "", *, of: str = CLASS, held_back: float | None = None
) -> Standing:
    """One class is in `phase`; all others are promoted."""
    return Standing(
        classes={of: ClassStanding(share=share, phase=phase, message=message, hold_back_share=held_back)},
        initial=ClassStanding(share=1.0, phase=Phase.PROMOTED),
    )


def route(standing: Standing | None = None, killed: str | None = None, **policy: Any) -> Route:
    return msgspec.structs.replace(cases.route(policy=policy), standing=standing, killed=killed)


def run(served: Route, *, found: Forecast | None = PAYS, draws: Draws = NO_DRAWS, **asked: Any) -> Decision:
    return decide(DecisionInputs(request(**asked), profile(), served, forecast=found, draws=draws))


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("found", [PAYS, None], ids=["forecast", "rules"])
def test_a_step_lets_its_share_speculate_and_the_rest_is_the_control(found: Forecast | None, share: float) -> None:
    served = route(standing(Phase.PROGRESSING, share), holdBackShare=0)
    decisions = [run(served, found=found, draws=draws_of(f"request-{index}")) for index in range(3000)]
    reached = [decision for decision in decisions if decision.reason is Reason.SPECULATION_PAYS]
    control = [decision for decision in decisions if decision.reason is Reason.ROLLOUT]
    assert len(reached) + len(control) == 3000
    assert len(reached) / 3000 == pytest.approx(share, abs=0.03)
    assert {(decision.arm, decision.draft_length) for decision in control} <= {(Arm.CONTROL, 0)}
    assert all(decision.arm is Arm.SPECULATIVE for decision in reached)


def test_a_later_step_keeps_whom_an_earlier_one_reached() -> None:
    def reached(share: float) -> set[int]:
        served = route(standing(Phase.PROGRESSING, share), holdBackShare=0)
        found = (run(served, draws=draws_of(f"request-{index}")) for index in range(500))
        return {index for index, decision in enumerate(found) if decision.arm is Arm.SPECULATIVE}

    steps = [reached(share) for share in (0.05, 0.25, 0.5, 1.0)]
    assert all(earlier < later for earlier, later in itertools.pairwise(steps))


def test_who_is_reached_may_still_be_held_back() -> None:
    served = route(standing(Phase.PROGRESSING, 0.5), holdBackShare=0.5)
    reasons = [run(served, draws=draws_of(f"request-{index}")).reason for index in range(2000)]
    shares = {reason: reasons.count(reason) / 2000 for reason in set(reasons)}
    expected = {Reason.ROLLOUT: 0.5, Reason.HOLD_BACK: 0.25, Reason.SPECULATION_PAYS: 0.25}
    assert shares == pytest.approx(expected, abs=0.04)


def test_operators_share_of_the_control_goes_before_the_policys() -> None:
    def control(served: Route, index: int) -> bool:
        decision = run(served, draws=draws_of(f"request-{index}"))
        assert decision.reason in (Reason.HOLD_BACK, Reason.SPECULATION_PAYS)
        return decision.arm is Arm.CONTROL

    raised = standing(Phase.PROMOTED, 1.0, held_back=0.2)
    for shown, expected in ((raised, 0.2), (standing(Phase.PROMOTED, 1.0), 0.02)):
        served = route(shown)
        share = sum(control(served, index) for index in range(4000)) / 4000
        assert share == pytest.approx(expected, abs=0.02)
        assert run(served).numbers["hold_back_share"] == expected
    kept = {index for index in range(500) if control(route(standing(Phase.PROMOTED, 1.0)), index)}
    assert kept < {index for index in range(500) if control(route(raised), index)}


ALARMED, UNSEEN = (msgspec.structs.replace(PAYS, alarm=alarm) for alarm in (True, None))


@pytest.mark.parametrize(
    ("found", "rollout_share", "held_back", "policy", "expected"),
    [
        (ALARMED, 1.0, 0.02, {}, 0.75),
        (ALARMED, 1.0, 0.1, {}, 0.75),
        (ALARMED, 0.5, 0.02, {}, 0.5),  # with the rollout's own control, three in four again
        (ALARMED, 0.25, 0.02, {}, 0.02),
        (ALARMED, 1.0, 0.02, {"maxHoldBackShare": 0.2}, 0.2),
        (ALARMED, 1.0, 0.2, {"maxHoldBackShare": 0.2}, 0.2),
        (ALARMED, 1.0, None, {"holdBackShare": 0}, 0.0),
        (UNSEEN, 1.0, 0.1, {}, 0.75),
        (UNSEEN, 1.0, None, {}, 0.75),
        (UNSEEN, 1.0, 0.02, {}, 0.02),
        (PAYS, 1.0, 0.1, {}, 0.1),
    ],
)
def test_an_alarm_raises_the_share_of_the_control_at_once(
    found: Forecast, rollout_share: float, held_back: float | None, policy: dict[str, Any], expected: float
) -> None:
    served = route(standing(Phase.PROMOTED, rollout_share, held_back=held_back), **policy)
    draws = msgspec.structs.replace(NO_DRAWS, rollout=0.0)
    decision = run(served, found=found, draws=draws)
    assert decision.numbers["hold_back_share"] == expected
    assert decision.alarmed is (expected > (0.02 if held_back is None else held_back))
    held = msgspec.structs.replace(draws, hold_back=0.0)
    assert run(served, found=found, draws=held).alarmed is decision.alarmed
    if decision.alarmed:
        assert "held back for an alarm" in run(served, found=found, draws=held).detail


def test_an_alarm_holds_nothing_back_where_nobody_would_judge_the_class() -> None:
    for served in (
        route(standing(Phase.ENABLED, 1.0, held_back=0.02), classes=[{"name": "summarization", "mode": "speculative"}]),
        route(),
    ):
        decision = run(served, found=ALARMED)
        assert (decision.arm, decision.alarmed) == (Arm.SPECULATIVE, False)
        assert decision.numbers["hold_back_share"] == 0.02


def test_a_rollout_says_how_far_it_is_and_what_the_request_would_have_done() -> None:
    decision = run(route(standing(Phase.PROGRESSING, 0.05)))
    assert decision.detail == (
        "5% of summarization/long speculate at this step of the rollout; otherwise it would speculate with drafts of 4"
    )
    shown = explanation("p", profile(), decision)
    assert (shown["arm"], shown["reason"]) == ("control", "rollout")
    assert (shown["numbers"]["phase"], shown["numbers"]["rollout_share"]) == ("Progressing", 0.05)


def test_what_does_not_pay_is_plain_and_no_control() -> None:
    decision = run(route(standing(Phase.PROGRESSING, 0.05)), found=forecast(acceptance=0.1))
    assert (decision.arm, decision.reason) == (Arm.PLAIN, Reason.BREAK_EVEN)


WITHHELD = [(Phase.ROLLED_BACK, Reason.ROLLED_BACK), (Phase.STALE, Reason.STATISTICS_STALE)]


@pytest.mark.parametrize(("phase", "reason"), WITHHELD)
@pytest.mark.parametrize("found", [PAYS, UNCERTAIN], ids=["pays", "uncertain"])
@pytest.mark.parametrize(
    "policy",
    [
        {"explorationShare": 1},
        {"allowClientMode": True},
        {"classes": [{"name": "summarization", "mode": "speculative"}]},
    ],
    ids=["explored", "asked", "enabled"],
)
def test_a_class_that_was_taken_back_is_plain_whatever_speaks_for_it(
    phase: Phase, reason: Reason, found: Forecast, policy: dict[str, Any]
) -> None:
    served = route(standing(phase, message="acceptance 0.41 is below\n 0.55"), **policy)
    decision = run(served, found=found, draws=LUCKY, mode=Mode.SPECULATIVE)
    assert (decision.arm, decision.reason, decision.draft_length) == (Arm.PLAIN, reason, 0)
    assert decision.detail.endswith("summarization/long is rolled back: acceptance 0.41 is below 0.55") or (
        decision.detail == "there are no recent outcomes of summarization/long: acceptance 0.41 is below 0.55"
    )
    assert (decision.numbers["phase"], decision.numbers["rollout_share"]) == (phase.value, 0.0)


def test_other_classes_go_on_where_one_was_taken_back() -> None:
    served = route(standing(Phase.ROLLED_BACK, of="summarization/short"))
    assert run(served).reason is Reason.SPECULATION_PAYS


def test_a_class_that_was_never_seen_is_at_the_initial_step() -> None:
    unseen = Standing(classes={}, initial=ClassStanding(share=0.05, phase=Phase.PROGRESSING))
    assert run(route(unseen)).reason is Reason.ROLLOUT
    assert run(route(unseen), draws=LUCKY).reason is Reason.SPECULATION_PAYS


@pytest.mark.parametrize(
    ("mode", "expected"), [("speculative", Reason.CLASS_ENABLED), ("plain", Reason.CLASS_DISABLED)]
)
def test_a_rule_for_the_class_goes_before_its_rollout(mode: str, expected: Reason) -> None:
    phase, share = (Phase.ENABLED, 1.0) if mode == "speculative" else (Phase.DISABLED, 0.0)
    rule = [{"name": "summarization", "mode": mode}]
    assert run(route(standing(phase, share), classes=rule, holdBackShare=0)).reason is expected
    lagging = standing(Phase.PROGRESSING, 0.05)  # the operator has not seen the rule yet
    assert run(route(lagging, classes=rule, holdBackShare=0)).reason is expected


def test_a_client_that_may_choose_is_not_held_to_a_step() -> None:
    served = route(standing(Phase.PROGRESSING, 0.05), allowClientMode=True)
    assert run(served, mode=Mode.SPECULATIVE).reason is Reason.CLIENT_ASKED


def test_without_an_operator_nothing_is_withheld() -> None:
    decision = run(route(None))
    assert decision.reason is Reason.SPECULATION_PAYS
    assert not {"phase", "rollout_share"} & decision.numbers.keys()


def test_a_kill_from_any_source_goes_before_everything_and_says_whose_it_is() -> None:
    why = "the kill switch of\nSpeculationPolicy/broken is on"
    served = route(standing(Phase.ROLLED_BACK), killed=why, enabled=False, killSwitch=True)
    decision = run(served)
    assert (decision.arm, decision.reason) == (Arm.PLAIN, Reason.KILL_SWITCH)
    assert decision.detail == "the kill switch of SpeculationPolicy/broken is on"


def test_a_taken_back_class_is_said_before_servers_that_are_down() -> None:
    asked = request(endpoint=Endpoint.COMPLETION, messages=(), prompt="x")
    down = Health(speculative_available=False)
    for held, expected in ((Phase.ROLLED_BACK, Reason.ROLLED_BACK), (Phase.PROMOTED, Reason.SPECULATIVE_UNAVAILABLE)):
        served = route(standing(held, 1.0))
        assert (
            decide(DecisionInputs(asked, profile(), served, forecast=PAYS, draws=LUCKY, health=down)).reason is expected
        )


@settings(max_examples=150, deadline=None)
@given(
    phase=st.sampled_from(Phase),
    share=st.floats(0.0, 1.0),
    draws=st.builds(draws_of, st.text(max_size=8)),
    acceptance=st.floats(0.0, 1.0),
    doubt=st.floats(0.0, 1.0),
    hold_back=st.floats(0.0, 1.0),
    exploration=st.floats(0.0, 1.0),
)
def test_a_rollout_only_ever_takes_speculation_away(
    phase: Phase, share: float, draws: Draws, acceptance: float, doubt: float, hold_back: float, exploration: float
) -> None:
    policy = {"holdBackShare": hold_back, "explorationShare": exploration}
    found = forecast(acceptance=acceptance, doubt=doubt)
    without = run(route(None, **policy), found=found, draws=draws)
    decision = run(route(standing(phase, share), **policy), found=found, draws=draws)
    assert (decision.draft_length > 0) is (decision.arm is Arm.SPECULATIVE)
    assert (decision.arm is Arm.CONTROL) is (decision.reason in (Reason.ROLLOUT, Reason.HOLD_BACK))
    if decision.arm is Arm.SPECULATIVE:
        assert (without.arm, without.reason, without.draft_length) == (
            decision.arm,
            decision.reason,
            decision.draft_length,
        )
        assert phase not in (Phase.ROLLED_BACK, Phase.STALE)
    if decision.reason is Reason.ROLLOUT:
        assert draws.rollout >= share
        assert without.reason in (Reason.SPECULATION_PAYS, Reason.HOLD_BACK)


@pytest.mark.parametrize("phase", [Phase.PROGRESSING, Phase.ENABLED, Phase.PROMOTED, Phase.DISABLED])
@pytest.mark.parametrize("found", [PAYS, UNCERTAIN, None], ids=["pays", "uncertain", "rules"])
def test_a_class_of_which_nothing_may_speculate_does_not(phase: Phase, found: Forecast | None) -> None:
    served = route(standing(phase, 0.0), explorationShare=1, holdBackShare=0)
    decisions = [run(served, found=found, draws=draws_of(f"request-{index}")) for index in range(50)]
    assert all(decision.arm is not Arm.SPECULATIVE for decision in [*decisions, run(served, found=found, draws=LUCKY)])
    assert run(route(standing(phase, 0.5), explorationShare=1), found=UNCERTAIN, draws=LUCKY).arm is (
        Arm.PLAIN if phase is Phase.DISABLED else Arm.SPECULATIVE
    )


@pytest.mark.parametrize("rule", [{}, {"classes": [{"name": "summarization", "mode": "auto"}]}], ids=["none", "auto"])
def test_a_class_that_the_status_disables_is_plain_like_one_by_rule(rule: dict[str, Any]) -> None:
    decision = run(route(standing(Phase.DISABLED), **rule))
    assert (decision.arm, decision.reason) == (Arm.PLAIN, Reason.CLASS_DISABLED)
    assert decision.detail == "summarization/long is disabled by the policy's status"
