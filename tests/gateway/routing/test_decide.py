"""The decision by rules: its order, its reasons, and that it depends on nothing but its arguments."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.errors import UnsupportedParameter
from slipstream_core.manifest import Route
from slipstream_core.types import (
    RESPONSES_FEATURE,
    Arm,
    Decision,
    GenerationRequest,
    Mode,
    Reason,
    RequestProfile,
    TaskType,
)
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, Health, explanation
from slipstream_gateway.decide.route import decide as decide_with

from tests.gateway.routing.cases import ONE_ANSWER_ARMS, profile, request, route

OPENAI_ARM = {"protocol": "openai", "endpoints": ["http://a:1"], "model": "m"}
TRITON_ARM = {"protocol": "triton", "endpoints": ["grpc://a:1"], "model": "m"}
UP, DOWN = Health(), Health(speculative_available=False)


def decide(request: GenerationRequest, profile: RequestProfile, route: Route, health: Health = UP) -> Decision:
    """Without a forecast, and with no part for chance."""
    return decide_with(DecisionInputs(request, profile, route, forecast=None, draws=NO_DRAWS, health=health))


# Each row breaks one more rule than the row after it: whatever stands higher must win over all that stands lower.
LADDER: list[tuple[Reason, dict[str, Any]]] = [
    (Reason.KILL_SWITCH, {"pair": {"killSwitch": True}}),
    (Reason.KILL_SWITCH, {"policy": {"killSwitch": True}}),
    (Reason.POLICY_DISABLED, {"policy": {"enabled": False}}),
    (Reason.NO_DRAFT, {"arms": {"speculative": None}}),
    (Reason.PAIR_NOT_READY, {"ready": False}),
    (Reason.SPECULATIVE_UNAVAILABLE, {"health": DOWN}),
    (Reason.UNSUPPORTED_PARAMETER, {"request": {"n": 2}}),
    (Reason.CLIENT_ASKED, {"policy": {"allowClientMode": True}, "request": {"mode": Mode.PLAIN}}),
    (Reason.CLASS_DISABLED, {"policy": {"classes": [{"name": "summarization", "mode": "plain"}]}}),
    (Reason.SHORT_OUTPUT, {"profile": {"expected_output_tokens": 20.0}}),
    (Reason.RARE_TOKENS, {"profile": {"rare_token_share": 0.5}}),
    (Reason.HOT_SAMPLING, {"request": {"temperature": 1.5}}),
    (Reason.LONG_CONTEXT, {"profile": {"prompt_tokens": 100_000}}),
    (Reason.SPECULATION_PAYS, {}),
]


def merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "arms": ONE_ANSWER_ARMS,
        "pair": {},
        "policy": {},
        "request": {},
        "profile": {},
        "ready": True,
        "health": UP,
    }
    for row in rows:
        for key, value in row.items():
            result[key] = result[key] | value if isinstance(value, dict) else value
    return result


@pytest.mark.parametrize("step", range(len(LADDER)), ids=[f"{i}-{row[0]}" for i, row in enumerate(LADDER)])
def test_the_first_rule_that_applies_wins_over_all_later_ones(step: int) -> None:
    case = merged([changes for _, changes in LADDER[step:]])
    decision = decide(
        request(**case["request"]),
        profile(**case["profile"]),
        route(arms=case["arms"], pair=case["pair"], policy=case["policy"], ready=case["ready"]),
        case["health"],
    )
    assert decision.reason is LADDER[step][0]
    expected = Arm.SPECULATIVE if decision.reason is Reason.SPECULATION_PAYS else Arm.PLAIN
    assert decision.arm is expected
    assert (decision.draft_length > 0) is (expected is Arm.SPECULATIVE)


def test_without_a_policy_everything_is_plain() -> None:
    assert decide(request(), profile(), route(policy={"pair": None})).reason is Reason.NO_POLICY


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"expected_output_tokens": 64.0}, Reason.SPECULATION_PAYS),
        ({"expected_output_tokens": 63.9}, Reason.SHORT_OUTPUT),
        ({"rare_token_share": 0.12}, Reason.SPECULATION_PAYS),
        ({"rare_token_share": 0.13}, Reason.RARE_TOKENS),
        ({"prompt_tokens": 16_384}, Reason.SPECULATION_PAYS),
        ({"prompt_tokens": 16_385}, Reason.LONG_CONTEXT),
        ({"confidence": 0.4}, Reason.SPECULATION_PAYS),
        ({"confidence": 0.39}, Reason.UNKNOWN_CLASS),
        ({"task": TaskType.UNKNOWN, "confidence": 1.0}, Reason.UNKNOWN_CLASS),
    ],
)
def test_thresholds_hold_at_their_edge(changes: dict[str, Any], reason: Reason) -> None:
    assert decide(request(), profile(**changes), route()).reason is reason


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampling_up_to_the_limit_speculates(temperature: float) -> None:
    assert decide(request(temperature=temperature), profile(), route()).arm is Arm.SPECULATIVE


def test_the_decision_carries_every_number_that_led_there() -> None:
    numbers = decide(request(temperature=0.5), profile(), route(policy={"minOutputTokens": 50})).numbers
    assert numbers == {
        "task": "summarization",
        "confidence": 0.9,
        "expected_output_tokens": 200.0,
        "rare_token_share": 0.02,
        "prompt_tokens": 300,
        "structured_output": False,
        "min_confidence": 0.4,
        "min_output_tokens": 50,
        "max_rare_token_share": 0.12,
        "temperature": 0.5,
        "max_temperature": 1.0,
        "max_context_tokens": 16_384,
        "hold_back_share": 0.02,
    }


def test_a_rule_for_task_and_length_goes_before_one_for_the_task() -> None:
    classes = [
        {"name": "summarization", "mode": "plain"},
        {"name": "summarization/long", "mode": "speculative", "draftTokens": 3},
    ]
    decision = decide(request(), profile(rare_token_share=0.9), route(policy={"classes": classes}))
    assert (decision.reason, decision.draft_length) == (Reason.CLASS_ENABLED, 3)
    shorter = decide(request(), profile(expected_output_tokens=100.0), route(policy={"classes": classes}))
    assert shorter.reason is Reason.CLASS_DISABLED


def test_a_rule_does_not_apply_to_a_task_that_is_uncertain() -> None:
    classes = [{"name": "summarization", "mode": "speculative"}]
    decision = decide(request(), profile(confidence=0.1), route(policy={"classes": classes}))
    assert decision.reason is Reason.UNKNOWN_CLASS


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, 6),
        ({"draftTokens": 4}, 4),
        ({"draftTokens": 4, "classes": [{"name": "summarization", "draftTokens": 2}]}, 2),
    ],
)
def test_the_draft_length_is_the_rules_then_the_policys_then_the_pairs(policy: dict[str, Any], expected: int) -> None:
    assert decide(request(), profile(), route(policy=policy)).draft_length == expected


def test_a_client_may_choose_only_where_the_policy_allows_it() -> None:
    short = profile(expected_output_tokens=5.0)
    asked = request(mode=Mode.SPECULATIVE)
    allowed = decide(asked, short, route(policy={"allowClientMode": True}))
    assert (allowed.arm, allowed.reason, allowed.draft_length) == (Arm.SPECULATIVE, Reason.CLIENT_ASKED, 6)
    ignored = decide(asked, short, route())
    assert ignored.reason is Reason.SHORT_OUTPUT
    assert (ignored.numbers["client_mode"], ignored.numbers["allow_client_mode"]) == ("speculative", False)


def test_a_parameter_that_only_plain_honours_goes_there() -> None:
    arms = {"plain": OPENAI_ARM, "speculative": OPENAI_ARM}
    decision = decide(request(features=frozenset({"logprobs", "min_p"})), profile(), route(arms=arms))
    assert (decision.arm, decision.reason) == (Arm.PLAIN, Reason.UNSUPPORTED_PARAMETER)
    assert decision.numbers["unsupported"] == "logprobs, min_p"


def test_a_parameter_that_only_speculation_honours_goes_there() -> None:
    arms = {"plain": OPENAI_ARM | {"unsupported": ["tools"]}, "speculative": OPENAI_ARM}
    decision = decide(request(features=frozenset({"tools"})), profile(expected_output_tokens=1.0), route(arms=arms))
    assert (decision.arm, decision.reason) == (Arm.SPECULATIVE, Reason.UNSUPPORTED_PARAMETER)
    assert decision.draft_length == 6


@pytest.mark.parametrize(
    ("arms", "features", "policy", "param"),
    [
        ({"plain": TRITON_ARM, "speculative": TRITON_ARM}, {"tools"}, {}, "tools"),
        ({"plain": TRITON_ARM, "speculative": TRITON_ARM}, {"tools", "n"}, {}, "tools"),
        ({"plain": TRITON_ARM}, {"best_of"}, {}, "best_of"),
        (
            {"plain": OPENAI_ARM | {"unsupported": ["tools"]}, "speculative": OPENAI_ARM},
            {"tools"},
            {"killSwitch": True},
            "tools",
        ),
        (
            {"plain": OPENAI_ARM | {"unsupported": ["tools"]}, "speculative": OPENAI_ARM},
            {"tools", "logprobs"},
            {},
            "tools",
        ),
    ],
)
def test_a_parameter_that_no_usable_arm_honours_is_an_error_that_names_it(
    arms: dict[str, Any], features: set[str], policy: dict[str, Any], param: str
) -> None:
    with pytest.raises(UnsupportedParameter) as raised:
        decide(request(features=frozenset(features)), profile(), route(arms=arms, policy=policy))
    assert raised.value.param == param
    assert f"'{param}'" in str(raised.value)


RESPONSE = frozenset({RESPONSES_FEATURE})


@pytest.mark.parametrize("arms", [{"plain": TRITON_ARM, "speculative": TRITON_ARM}, {"plain": TRITON_ARM}])
def test_an_endpoint_that_no_server_has_is_an_error_that_names_it(arms: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedParameter, match="endpoint '/v1/responses'") as raised:
        decide(request(features=RESPONSE | {"tools"}), profile(), route(arms=arms))
    assert (raised.value.param, raised.value.code) == (None, "unsupported_endpoint")


def test_an_endpoint_that_one_arm_has_goes_there() -> None:
    arms = {"plain": OPENAI_ARM, "speculative": OPENAI_ARM | {"unsupported": [RESPONSES_FEATURE]}}
    decision = decide(request(features=RESPONSE), profile(), route(arms=arms))
    assert (decision.arm, decision.numbers["unsupported"]) == (Arm.PLAIN, RESPONSES_FEATURE)


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_what_one_server_keeps_needs_a_model_of_one_server(name: str) -> None:
    features = RESPONSE | {name}
    one = {"plain": OPENAI_ARM, "speculative": OPENAI_ARM}
    assert decide(request(features=features), profile(), route(arms=one)).arm is Arm.SPECULATIVE
    for arms in (
        one | {"plain": OPENAI_ARM | {"endpoints": ["http://b:1"]}},
        one | {"plain": OPENAI_ARM | {"endpoints": ["http://a:1", "http://b:1"]}},
    ):
        with pytest.raises(UnsupportedParameter, match="several servers") as raised:
            decide(request(features=features), profile(), route(arms=arms))
        assert raised.value.param == name


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.floats(0, 5000),
    share=st.floats(0, 1),
    prompt=st.integers(0, 10**6),
    confidence=st.floats(0, 1),
    temperature=st.floats(0, 2),
    task=st.sampled_from(TaskType),
    mode=st.sampled_from(Mode),
    n=st.integers(1, 8),
    allow=st.booleans(),
    up=st.booleans(),
)
def test_the_same_arguments_give_the_same_decision_and_it_is_consistent(
    tokens: float,
    share: float,
    prompt: int,
    confidence: float,
    temperature: float,
    task: TaskType,
    mode: Mode,
    n: int,
    allow: bool,
    up: bool,
) -> None:
    arguments = (
        request(temperature=temperature, mode=mode, n=n),
        profile(
            expected_output_tokens=tokens,
            rare_token_share=share,
            prompt_tokens=prompt,
            confidence=confidence,
            task=task,
        ),
        route(policy={"allowClientMode": allow}, arms=ONE_ANSWER_ARMS),
        Health(speculative_available=up),
    )
    decision = decide(*arguments)
    assert decide(*arguments) == decision
    assert (decision.draft_length > 0) is (decision.arm is Arm.SPECULATIVE)
    assert decision.arm is Arm.PLAIN or (up and n == 1)
    assert decision.detail
    assert "\n" not in decision.detail


def test_an_explanation_is_plain_json_with_the_numbers() -> None:
    found = profile(evidence=("task summarization: summarise",))
    decision: Decision = decide(request(), found, route())
    value = msgspec.json.decode(msgspec.json.encode(explanation("p", found, decision)))
    assert (value["arm"], value["class"], value["draft_length"]) == ("speculative", "summarization/long", 6)
    assert value["numbers"]["min_output_tokens"] == 64
    assert value["profile"]["evidence"] == ["task summarization: summarise"]
    assert yaml.safe_load(yaml.safe_dump(value)) == value
