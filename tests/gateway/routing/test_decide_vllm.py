"""Decisions for servers that take a draft length with every request, as far as they say that they can."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_core.errors import UnsupportedParameter
from slipstream_core.manifest import Route
from slipstream_core.types import Arm, Decision, Mode, Reason, Withheld
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, Health, decide

from tests.gateway.routing.cases import profile, request, route

VLLM: dict[str, Any] = {"kind": "vllm", "endpoints": ["http://v:1"]}
WITH_PLAIN = VLLM | {"plain": {"endpoints": ["http://p:1"]}}
CANNOT = Withheld(reason=Reason.ENGINE_CANNOT, detail="the server does not support draft lengths: no plugin")


def vllm(engine: dict[str, Any] = VLLM, **policy: Any) -> Route:
    return route(pair={"engine": engine}, policy={"allowClientMode": True, "decision": "rules", **policy})


def decided(where: Route, health: Health = Health(), **changes: Any) -> Decision:  # noqa: B008 # immutable
    return decide(DecisionInputs(request(**changes), profile(), where, forecast=None, draws=NO_DRAWS, health=health))


def test_the_draft_length_is_the_requests_own() -> None:
    assert decided(vllm(draftTokens=3)).draft_length == 3
    assert decided(vllm(), mode=Mode.SPECULATIVE, draft_length=2).draft_length == 2


@pytest.mark.parametrize(
    "changes", [{}, {"mode": Mode.SPECULATIVE}, {"mode": Mode.SPECULATIVE, "draft_length": 5}], ids=str
)
def test_no_draft_is_longer_than_the_servers_take(changes: dict[str, Any]) -> None:
    decision = decided(vllm(), Health(longest_draft=2), **changes)
    assert (decision.arm, decision.draft_length) == (Arm.SPECULATIVE, 2)
    assert decision.numbers["servers_longest_draft"] == 2
    assert "servers_longest_draft" not in decided(vllm(), Health(longest_draft=6), **changes).numbers


def test_a_rule_for_a_class_asks_for_no_more_than_the_servers_take() -> None:
    where = vllm(classes=[{"name": "summarization", "mode": "speculative", "draftTokens": 5}])
    assert decided(where).draft_length == 5
    assert decided(where, Health(longest_draft=4)).draft_length == 4


def test_a_server_that_chooses_gets_the_maximum() -> None:
    where, health = vllm(draftTokens=5), Health(longest_draft=8, adaptive=True)
    greedy, sampled = decided(where, health, temperature=0.0), decided(where, health, temperature=0.7)
    assert (greedy.draft_length, greedy.adaptive) == (5, True)
    assert (sampled.draft_length, sampled.adaptive) == (5, True)


def test_a_policy_may_keep_the_draft_length_of_the_decision() -> None:
    decision = decided(vllm(draftTokens=3, adaptiveDraftLength=False), Health(adaptive=True), temperature=0.0)
    assert (decision.draft_length, decision.adaptive) == (3, False)


def test_a_clients_draft_length_is_not_the_servers_to_change() -> None:
    decision = decided(vllm(), Health(adaptive=True), temperature=0.0, mode=Mode.SPECULATIVE, draft_length=2)
    assert (decision.draft_length, decision.adaptive) == (2, False)


def test_a_plain_request_leaves_nothing_to_choose() -> None:
    decision = decided(vllm(), Health(adaptive=True), temperature=0.0, mode=Mode.PLAIN)
    assert (decision.arm, decision.adaptive) == (Arm.PLAIN, False)


def test_servers_that_cannot_draft_decode_plainly_and_say_why() -> None:
    health = Health(speculative_available=False, withheld=CANNOT)
    decision = decided(vllm(), health, mode=Mode.SPECULATIVE)
    assert (decision.arm, decision.reason, decision.draft_length) == (Arm.PLAIN, Reason.ENGINE_CANNOT, 0)
    assert decision.detail == CANNOT.detail


@pytest.mark.parametrize("name", ["min_p", "logit_bias", "trace_decode_token_ids"])
def test_what_vllm_refuses_while_it_speculates_goes_to_plain_servers_or_is_refused(name: str) -> None:
    features = frozenset({name, "tools"})
    with pytest.raises(UnsupportedParameter) as refused:
        decided(vllm(), features=features)
    assert refused.value.param == name
    decision = decided(vllm(WITH_PLAIN), features=features)
    assert (decision.arm, decision.reason) == (Arm.PLAIN, Reason.UNSUPPORTED_PARAMETER)
    assert decision.numbers["unsupported"] == name
    assert decision.detail == f"servers that speculate refuse {name}, so that one without speculation decodes it"


def test_a_switch_goes_before_what_vllm_refuses_and_the_request_is_served_all_the_same() -> None:
    decision = decided(vllm(WITH_PLAIN, killSwitch=True), features=frozenset({"min_p"}))
    assert (decision.arm, decision.reason) == (Arm.PLAIN, Reason.KILL_SWITCH)
    with pytest.raises(UnsupportedParameter):
        decided(vllm(killSwitch=True), features=frozenset({"min_p"}))


@pytest.mark.parametrize("feature", ["logprobs", "tools", "response_format", "n", "presence_penalty", "min_tokens"])
def test_all_else_that_vllm_does_may_speculate(feature: str) -> None:
    assert decided(vllm(), mode=Mode.SPECULATIVE, features=frozenset({feature})).arm is Arm.SPECULATIVE
