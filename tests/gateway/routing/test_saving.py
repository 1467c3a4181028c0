"""The decision by the predicted saving: margin, certainty, cost, exploration, hold-back, and who may overrule it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.errors import InvalidRequest
from slipstream_core.manifest import Route
from slipstream_core.observation import Draws, Forecast, Level
from slipstream_core.types import (
    Arm,
    Decision,
    Mode,
    Reason,
)
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, Health, decide

from tests.gateway.routing import cases
from tests.gateway.routing.cases import ONE_ANSWER_ARMS, forecast, profile, request
from tests.support.draws import chosen_draws, draws_of

ARM = {"protocol": "openai", "model": "m"}
ARMS = {"plain": ARM | {"endpoints": ["http://a:1"]}, "speculative": ARM | {"endpoints": ["http://b:1"]}}
EAGER = chosen_draws(exploration=0.0)


def route(*, arms: dict[str, Any] | None = None, price: float | None = None, **policy: Any) -> Route:
    """A pair of Slipstream's engine, or of the external `arms`, with a policy."""
    return cases.route(pair={"pricePerGpuHour": price}, policy=policy, arms=arms)


PAYS = forecast()
LOSES = forecast(acceptance=0.1)
UNCERTAIN = forecast(acceptance=0.3, doubt=0.3)


def run(found: Forecast | None, served: Route, *, draws: Draws = NO_DRAWS, **more: Any) -> Decision:
    return decide(
        DecisionInputs(
            more.get("request", request()), more.get("profile", profile()), served, forecast=found, draws=draws
        )
    )


def test_a_saving_above_the_margin_speculates_with_the_best_draft_length() -> None:
    decision = run(PAYS, route())
    assert (decision.arm, decision.reason) == (Arm.SPECULATIVE, Reason.SPECULATION_PAYS)
    assert decision.draft_length == decision.numbers["best_draft_length"] == 4
    assert decision.saving_s == decision.numbers["saving_s"] == pytest.approx(199 * (0.010 - 0.020 / 3.3616))


def test_a_loss_is_plain_and_says_how_much() -> None:
    decision = run(LOSES, route())
    assert (decision.arm, decision.reason, decision.draft_length) == (Arm.PLAIN, Reason.BREAK_EVEN, 0)
    assert decision.saving_s is not None
    assert decision.saving_s < 0
    assert "is predicted to lose" in decision.detail


def test_a_saving_below_the_margin_is_none() -> None:
    assert run(PAYS, route(margin=0.3)).arm is Arm.SPECULATIVE
    assert run(PAYS, route(margin=0.5)).reason is Reason.BREAK_EVEN


def test_the_best_draft_length_is_short_where_drafts_are_rejected_and_long_where_they_are_not() -> None:
    lengths = [run(forecast(acceptance=beta), route()).numbers["best_draft_length"] for beta in (0.3, 0.6, 0.8, 0.97)]
    assert lengths == [1, 2, 4, 6]
    assert run(PAYS, route(draftTokens=3)).draft_length == 3


def test_servers_with_a_draft_length_of_their_own_use_that_one() -> None:
    served = route(arms=ARMS)
    assert run(forecast(acceptance=0.7), served).draft_length == 6
    unreported = forecast(acceptance=None, step_base_s=0.004, step_per_draft_token_s=0.0)
    assert (run(unreported, served).reason, run(unreported, served).draft_length) == (Reason.SPECULATION_PAYS, 6)
    assert run(forecast(acceptance=None), served).reason is Reason.BREAK_EVEN


def test_a_busy_server_makes_the_same_request_plain() -> None:
    """At load a step's draft tokens cost compute that others wait for: base and slope rise, the plain step hardly."""
    assert run(forecast(load=1.0), route()).arm is Arm.SPECULATIVE
    busy = forecast(load=8.0, plain_tpot_s=0.014, step_base_s=0.030, step_per_draft_token_s=0.010)
    assert run(busy, route()).reason is Reason.BREAK_EVEN


parts = st.fixed_dictionaries(
    {
        "output_tokens": st.floats(1.0, 2000.0),
        "acceptance": st.floats(0.0, 1.0),
        "plain_tpot_s": st.floats(0.001, 0.1),
        "step_base_s": st.floats(0.001, 0.1),
        "step_per_draft_token_s": st.floats(0.0, 0.1),
        "doubt": st.floats(0.0, 1.0),
    }
)
EXPECTED, CAUTIOUS = route(), route(decision="cautious")


@settings(max_examples=150, deadline=None)
@given(parts=parts, confidence=st.sampled_from([0.6, 0.9, 0.99]))
def test_cautious_speculates_only_where_expected_does(parts: dict[str, float], confidence: float) -> None:
    found = forecast(**parts)
    cautious = run(found, route(decision="cautious", confidence=confidence))
    expected = run(found, EXPECTED)
    assert cautious.arm is Arm.PLAIN or cautious.draft_length == expected.draft_length


def test_cautious_wants_the_lower_bound_above_the_margin() -> None:
    doubtful = forecast(acceptance=0.6, doubt=0.25)
    assert run(doubtful, EXPECTED).arm is Arm.SPECULATIVE
    decision = run(doubtful, CAUTIOUS)
    assert decision.reason is Reason.BREAK_EVEN
    assert float(decision.numbers["saving_lower_bound_s"]) < float(decision.numbers["margin_s"])
    assert "with certainty only" in decision.detail


@settings(max_examples=200, deadline=None)
@given(parts=parts, draws=st.builds(draws_of, st.text(max_size=8)), share=st.floats(0.0, 1.0))
def test_whatever_is_forecast_the_decision_is_consistent(parts: dict[str, float], draws: Draws, share: float) -> None:
    decision = run(forecast(**parts), route(explorationShare=share, holdBackShare=share), draws=draws)
    assert (decision.draft_length > 0) is (decision.arm is Arm.SPECULATIVE)
    assert 0 <= decision.draft_length <= 6
    assert (decision.arm is Arm.CONTROL) is (decision.reason is Reason.HOLD_BACK)
    assert decision.saving_s is not None


def test_the_expected_saving_counts_however_little_is_measured_and_cautious_waits() -> None:
    doubtful = {"acceptance": 0.6, "doubt": 0.25}
    for level in Level:
        assert run(forecast(level=level, **doubtful), EXPECTED).reason is Reason.SPECULATION_PAYS
        assert run(forecast(level=level, **doubtful), route(decision="cautious")).reason is Reason.BREAK_EVEN


def test_exploration_is_drawn_only_where_the_sign_is_uncertain() -> None:
    served = route(explorationShare=0.05)
    decision = run(UNCERTAIN, served, draws=EAGER)
    assert (decision.arm, decision.reason) == (Arm.SPECULATIVE, Reason.EXPLORATION)
    assert run(UNCERTAIN, served).reason is Reason.BREAK_EVEN
    assert run(LOSES, served, draws=EAGER).reason is Reason.BREAK_EVEN
    assert run(UNCERTAIN, route(explorationShare=0), draws=EAGER).reason is Reason.BREAK_EVEN


@settings(max_examples=150, deadline=None)
@given(parts=parts)
def test_what_is_explored_might_pay(parts: dict[str, float]) -> None:
    decision = run(forecast(**parts), EXPECTED, draws=EAGER)
    if decision.reason is Reason.EXPLORATION:
        numbers = {name: float(decision.numbers[name]) for name in ("saving_s", "saving_se_s", "margin_s")}
        assert numbers["saving_s"] <= numbers["margin_s"]
        assert numbers["saving_s"] + 1.2816 * numbers["saving_se_s"] > numbers["margin_s"] * (1 - 1e-6)


def test_half_of_what_is_explored_tries_every_draft_length() -> None:
    found: dict[int, int] = {}
    for index in range(4000):
        draws = msgspec.structs.replace(draws_of(f"r{index}"), exploration=0.0)
        length = run(UNCERTAIN, route(), draws=draws).draft_length
        found[length] = found.get(length, 0) + 1
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    best = run(UNCERTAIN, route()).numbers["best_draft_length"]
    assert found[int(best)] == pytest.approx(4000 * (0.5 + 0.5 / 6), rel=0.1)
    assert min(found.values()) == pytest.approx(4000 * 0.5 / 6, rel=0.25)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_the_share_that_is_held_back_is_the_policys(share: float) -> None:
    served = route(holdBackShare=share)
    arms = [run(PAYS, served, draws=draws_of(f"request-{index}")).arm for index in range(3000)]
    assert arms.count(Arm.CONTROL) / 3000 == pytest.approx(share, abs=0.02)
    assert arms.count(Arm.CONTROL) + arms.count(Arm.SPECULATIVE) == 3000


def test_what_a_client_asked_for_or_explores_is_never_held_back() -> None:
    served = route(holdBackShare=1, allowClientMode=True)
    asked = run(PAYS, served, request=request(mode=Mode.SPECULATIVE), draws=EAGER)
    assert (asked.arm, asked.reason) == (Arm.SPECULATIVE, Reason.CLIENT_ASKED)
    assert run(UNCERTAIN, served, draws=EAGER).reason is Reason.EXPLORATION


def test_classes_that_the_policy_enables_are_held_back_too() -> None:
    classes = [{"name": "summarization", "mode": "speculative"}]
    decision = run(LOSES, route(classes=classes, holdBackShare=1))
    assert (decision.arm, decision.reason) == (Arm.CONTROL, Reason.HOLD_BACK)
    assert run(LOSES, route(classes=classes)).reason is Reason.CLASS_ENABLED


GUARDS: list[tuple[Reason, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (Reason.KILL_SWITCH, {"killSwitch": True}, {}, {}),
    (Reason.POLICY_DISABLED, {"enabled": False}, {}, {}),
    (Reason.UNSUPPORTED_PARAMETER, {}, {"n": 2}, {}),
    (Reason.CLASS_DISABLED, {"classes": [{"name": "summarization", "mode": "plain"}]}, {}, {}),
    (Reason.SHORT_OUTPUT, {"minOutputTokens": 1000}, {}, {}),
    (Reason.RARE_TOKENS, {"maxRareTokenShare": 0.1}, {}, {"rare_token_share": 0.5}),
    (Reason.HOT_SAMPLING, {"maxTemperature": 0.5}, {}, {}),
    (Reason.LONG_CONTEXT, {"maxContextTokens": 100}, {}, {}),
]


@pytest.mark.parametrize(("reason", "policy", "asked", "expected"), GUARDS, ids=[str(row[0]) for row in GUARDS])
@pytest.mark.parametrize("found", [PAYS, UNCERTAIN], ids=["pays", "uncertain"])
def test_a_guard_rail_wins_over_any_saving_and_over_exploration(
    found: Forecast, reason: Reason, policy: dict[str, Any], asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    served = route(arms=ONE_ANSWER_ARMS, **policy, explorationShare=1)
    decision = run(found, served, request=request(**asked), profile=profile(**expected), draws=EAGER)
    assert (decision.arm, decision.reason) == (Arm.PLAIN, reason)


def test_no_server_of_the_speculative_arm_wins_over_any_saving() -> None:
    down = Health(speculative_available=False)
    decision = decide(DecisionInputs(request(), profile(), route(), forecast=PAYS, draws=EAGER, health=down))
    assert decision.reason is Reason.SPECULATIVE_UNAVAILABLE


def test_thresholds_and_class_go_by_the_length_that_was_measured() -> None:
    served = route(minOutputTokens=64)
    short = forecast(output_tokens=30.0)
    decision = run(short, served)
    assert (decision.reason, decision.request_class) == (Reason.SHORT_OUTPUT, "summarization/short")
    guessed = run(msgspec.structs.replace(short, output_tokens=forecast(level=Level.CLASS).output_tokens), served)
    assert (guessed.reason, guessed.request_class) == (Reason.SPECULATION_PAYS, "summarization/long")


UNSURE = {"confidence": 0.1}


@pytest.mark.parametrize("level", [Level.CLASS, Level.PAIR, Level.PRIOR])
def test_an_unknown_class_below_the_policys_confidence_is_plain_however_much_it_might_save(level: Level) -> None:
    decision = run(forecast(level=level), route(minConfidence=0.4), profile=profile(**UNSURE))
    assert (decision.arm, decision.reason) == (Arm.PLAIN, Reason.UNKNOWN_CLASS)


def test_an_unknown_class_is_decided_by_its_forecast_unless_the_policy_asks_for_a_confidence() -> None:
    decision = run(forecast(level=Level.PRIOR), route(), profile=profile(**UNSURE))
    assert (decision.reason, "min_confidence" in decision.numbers) == (Reason.SPECULATION_PAYS, False)
    assert run(None, route(decision="rules"), profile=profile(**UNSURE)).reason is Reason.UNKNOWN_CLASS


def test_an_unknown_class_is_explored_within_the_policys_thresholds() -> None:
    found = forecast(level=Level.PAIR)
    decision = run(found, route(minConfidence=0.4), profile=profile(**UNSURE), draws=EAGER)
    assert decision.reason is Reason.EXPLORATION
    hot = run(found, route(minConfidence=0.4, maxTemperature=0.5), profile=profile(**UNSURE), draws=EAGER)
    assert hot.reason is Reason.UNKNOWN_CLASS
    loss = forecast(level=Level.PAIR, acceptance=0.1)
    assert run(loss, route(minConfidence=0.4), profile=profile(**UNSURE), draws=EAGER).reason is Reason.UNKNOWN_CLASS


def test_a_loss_that_only_other_keys_have_measured_is_explored() -> None:
    for name in ("acceptance", "step_base_s"):
        loss = forecast(acceptance=0.1, doubt=0.001)
        part = msgspec.structs.replace(getattr(loss, name), level=Level.KEYS)
        assert run(loss, route(), draws=EAGER).reason is Reason.BREAK_EVEN
        decision = run(msgspec.structs.replace(loss, **{name: part}), route(), draws=EAGER)
        assert decision.reason is Reason.EXPLORATION
        assert "rests on other keys' answers" in decision.detail
        assert run(msgspec.structs.replace(loss, **{name: part}), route()).reason is Reason.BREAK_EVEN


def test_lengths_of_other_keys_decide_no_threshold_and_no_class() -> None:
    found = forecast(output_tokens=14.0)
    lengths = msgspec.structs.replace(found.output_tokens, level=Level.KEYS)
    decision = run(msgspec.structs.replace(found, output_tokens=lengths), route(minOutputTokens=64), draws=EAGER)
    assert (decision.reason is not Reason.SHORT_OUTPUT, decision.request_class) == (True, "summarization/long")


def dear(price: float, **policy: Any) -> Route:
    arms = {"plain": ARMS["plain"], "speculative": ARMS["speculative"] | {"pricePerGpuHour": price}}
    return route(arms=arms, price=2.0, **policy)


def test_a_cost_that_only_other_keys_have_measured_is_explored() -> None:
    fast = forecast(acceptance=0.9)
    taken_over = msgspec.structs.replace(fast, step_base_s=forecast(level=Level.KEYS).step_base_s)
    for found, reason in ((fast, Reason.COST), (taken_over, Reason.EXPLORATION)):
        assert run(found, dear(4.5, maxCostIncrease=0.0), draws=EAGER).reason is reason


def test_servers_that_cost_more_than_they_save_time_are_not_used() -> None:
    """The answer takes 0.48 of its time there, so 2.09 times the price costs as much."""
    fast = forecast(acceptance=0.9)
    assert run(fast, dear(4.0)).reason is Reason.SPECULATION_PAYS
    decision = run(fast, dear(8.0))
    assert (decision.arm, decision.reason) == (Arm.PLAIN, Reason.COST)
    ratio = float(decision.numbers["speculative_s"]) / float(decision.numbers["plain_s"])
    assert decision.numbers["cost_increase"] == pytest.approx(4.0 * ratio - 1.0)
    assert run(fast, dear(8.0, maxCostIncrease=4)).reason is Reason.SPECULATION_PAYS
    assert run(fast, dear(8.0, maxCostIncrease=None)).reason is Reason.SPECULATION_PAYS


def test_by_rules_no_forecast_counts() -> None:
    served = route(decision="rules")
    decision = run(LOSES, served)
    assert (decision.reason, decision.draft_length, decision.saving_s) == (Reason.SPECULATION_PAYS, 6, None)
    short = run(PAYS, served, profile=profile(expected_output_tokens=20.0))
    assert (short.reason, short.numbers["min_output_tokens"]) == (Reason.SHORT_OUTPUT, 64)


def test_clients_that_may_choose_may_choose_the_draft_length() -> None:
    served = route(allowClientMode=True)
    asked = request(mode=Mode.SPECULATIVE, draft_length=2)
    assert run(LOSES, served, request=asked).draft_length == 2
    assert run(PAYS, route(), request=asked).draft_length == 4
    assert run(PAYS, served, request=request(mode=Mode.SPECULATIVE)).draft_length == 6
    with pytest.raises(InvalidRequest, match=r"x-slipstream-draft-length.*1 to 6, got 7"):
        run(PAYS, served, request=request(mode=Mode.SPECULATIVE, draft_length=7))
    fixed = route(arms=ARMS, allowClientMode=True)
    with pytest.raises(InvalidRequest, match=r"expected 6, the fixed draft length of its servers, got 2"):
        run(PAYS, fixed, request=asked)


def test_every_number_of_the_forecast_is_shown() -> None:
    numbers = run(PAYS, route()).numbers
    shown = {
        *("load", "output_tokens", "output_tokens_se", "output_tokens_samples", "output_tokens_level"),
        *("acceptance", "acceptance_se", "acceptance_samples", "acceptance_level"),
        *("plain_tpot_s", "step_base_s", "step_per_draft_token_s"),
        *("best_draft_length", "tokens_per_step", "speculative_tpot_s", "plain_s", "speculative_s"),
        *("saving_s", "saving_se_s", "margin_s", "hold_back_share"),
    }
    assert shown <= numbers.keys()
    assert msgspec.json.decode(msgspec.json.encode(dict(numbers)))["output_tokens_level"] == "class"
