"""Where requests and broken streams may go: the manifest's own routes, live replicas, nothing on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from slipstream_core.types import Arm, Decision, GenerationRequest, Reason
from slipstream_gateway.api.parse import parse_chat_request
from slipstream_gateway.request.candidates import Candidate, Plan, Sent, Tried, has_elsewhere, next_candidate

from tests.support.manifests import EMBEDDED, arm, external, pair_yaml

MANIFEST = pair_yaml("{kind: slipstream, endpoints: [%s]}", *EMBEDDED)
ARMS = pair_yaml(
    external(
        arm("grpc://127.0.0.1:1", protocol="triton"),
        arm("grpc://127.0.0.1:2", "grpc://127.0.0.1:3", protocol="triton"),
    ),
    "maxDraftTokens: 5",
)
GREEDY, SAMPLED = 0.0, 0.8


def request(temperature: float) -> GenerationRequest:
    body = {"model": "acme", "messages": [{"role": "user", "content": "hi"}], "temperature": temperature}
    return parse_chat_request(json.dumps(body).encode())


def decision(arm: Arm = Arm.SPECULATIVE) -> Decision:
    length = 4 if arm is Arm.SPECULATIVE else 0
    return Decision(
        arm=arm, reason=Reason.SPECULATION_PAYS, request_class="code/long", draft_length=length, detail="", numbers={}
    )


@pytest.fixture
def served(bench: Callable[..., Any]) -> Callable[[int], Any]:
    """The pair with `count` servers that serve both arms; no process listens at their addresses."""

    def make(count: int) -> Any:
        endpoints = ", ".join(f'"grpc://127.0.0.1:{port}"' for port in range(1, count + 1))
        return bench(MANIFEST % endpoints).served

    return make


def first_candidates(
    pair: Any, decided: Decision, asked: GenerationRequest, is_killed: Callable[[], bool], *, ill: Any = (), **more: Any
) -> Iterator[Candidate]:
    """The servers that are tried before the first byte if none of them answers. Those in `ill` fail by themselves."""
    tried: list[Tried] = []
    plan = Plan(pair, decided, asked, **more)
    while isinstance(found := next_candidate(plan, Sent(tried=tried, is_killed=is_killed())), Candidate):
        yield found
        tried.append(Tried(found, found.replica in ill))


def resume_candidates(
    pair: Any, decided: Decision, asked: GenerationRequest, broken: Any, is_killed: Callable[[], bool]
) -> Iterator[Candidate]:
    """The servers of one round of a resumption if none of them answers."""
    tried: list[Tried] = []
    stream = Candidate(broken, pair, pair.route.plain, decided)
    plan = Plan(pair, decided, asked)
    while isinstance(found := next_candidate(plan, Sent(tried, stream, is_killed=is_killed())), Candidate):
        yield found
        tried.append(Tried(found))


def steps(attempts: Any) -> list[tuple[str, int, str]]:
    """Arm, draft length and server of each attempt."""
    return [(tried.decision.arm, tried.decision.draft_length, tried.replica.name[-1]) for tried in attempts]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("temperature", [GREEDY, SAMPLED])
async def test_stream_resumes_plainly(served: Callable[[int], Any], temperature: float, killed: bool) -> None:
    pair = served(3)
    broken = pair.plain.replicas[0]
    plain = steps(resume_candidates(pair, decision(), request(temperature), broken, lambda: killed))
    assert sorted(plain[:2]) == [("plain", 0, "2"), ("plain", 0, "3")]
    assert plain[2:] == [("plain", 0, "1")]  # itself comes last


async def test_switch_that_is_turned_on_between_two_attempts_ends_drafting(bench: Callable[..., Any]) -> None:
    pair, killed = bench(ARMS).served, False
    broken = pair.speculative.replicas[0]
    attempts = resume_candidates(pair, decision(), request(SAMPLED), broken, lambda: killed)
    assert steps([next(attempts), next(attempts)]) == [("plain", 0, "1"), ("speculative", 4, "3")]
    killed = True
    assert steps(attempts) == []
    killed = False
    undisturbed = steps(resume_candidates(pair, decision(), request(SAMPLED), broken, lambda: killed))
    assert [step[0] for step in undisturbed] == ["plain", "speculative", "speculative"]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("temperature", [GREEDY, SAMPLED])
async def test_stream_goes_on_plainly_where_the_pair_has_lost_its_draft_meanwhile(
    bench: Callable[..., Any], temperature: float, killed: bool
) -> None:
    without = MANIFEST.replace('kind: model, source: "embedded:draft"', "kind: none")
    pair = bench(without % '"grpc://127.0.0.1:1", "grpc://127.0.0.1:2"').served
    assert pair.speculative is None
    attempts = list(resume_candidates(pair, decision(), request(temperature), pair.plain.replicas[0], lambda: killed))
    assert steps(attempts) == [("plain", 0, "2"), ("plain", 0, "1")]
    expected = Reason.KILL_SWITCH if killed else Reason.SPECULATIVE_UNAVAILABLE
    assert {tried.decision.reason for tried in attempts} == {expected}


async def test_servers_that_are_known_to_be_down_are_tried_when_nobody_else_is_left(
    served: Callable[[int], Any],
) -> None:
    pair = served(2)
    broken, other = pair.plain.replicas
    for _ in range(5):
        other.failed(0.0, "upstream_unavailable")
    assert pair.plain.least_busy() is not other
    assert steps(resume_candidates(pair, decision(Arm.PLAIN), request(GREEDY), broken, lambda: False)) == [
        ("plain", 0, "2"),
        ("plain", 0, "1"),
    ]
    assert {step[2] for step in steps(first_candidates(pair, decision(Arm.PLAIN), request(GREEDY), lambda: False))} == {
        "1",
        "2",
    }


async def test_server_whose_drafting_failed_may_still_decode_plainly(served: Callable[[int], Any]) -> None:
    pair, ill = served(1), []
    attempts = first_candidates(pair, decision(), request(GREEDY), lambda: False, ill=ill)
    first = next(attempts)
    assert first.decision.arm is Arm.SPECULATIVE
    ill.append(first.replica)
    assert steps(attempts) == [("plain", 0, "1")]


async def test_servers_that_were_lost_are_tried_again_but_not_those_that_failed_by_themselves(
    served: Callable[[int], Any],
) -> None:
    pair, ill = served(2), []
    attempts = first_candidates(pair, decision(Arm.PLAIN), request(GREEDY), lambda: False, ill=ill)
    ill.append(next(attempts).replica)
    lost = next(attempts).replica
    assert [each.replica for each in attempts] == [lost]


async def test_greedy_stream_drafts_on_where_no_plain_server_is_left(bench: Callable[..., Any]) -> None:
    pair = bench(ARMS).served
    assert pair.speculative is not None
    steps_left = steps(
        resume_candidates(pair, decision(), request(GREEDY), pair.speculative.replicas[0], lambda: False)
    )
    assert [step[::2] for step in steps_left] == [("plain", "1"), ("speculative", "3"), ("speculative", "2")]


async def test_only_another_server_is_elsewhere(served: Callable[[int], Any]) -> None:
    for count in (1, 2):
        pair = served(count)
        assert has_elsewhere(pair, pair.plain.replicas[0]) is (count == 2)


VLLM = pair_yaml(
    '{kind: vllm, endpoints: ["http://127.0.0.1:1", "http://127.0.0.1:2"],'
    ' plain: {endpoints: ["http://127.0.0.1:8", "http://127.0.0.1:9"]}}'
)


def refused_by_vllm() -> GenerationRequest:
    body = {"model": "acme", "messages": [{"role": "user", "content": "hi"}], "logit_bias": {"5": 1}}
    return parse_chat_request(json.dumps(body).encode())


@pytest.mark.integration
async def test_what_vllm_refuses_goes_to_its_plain_servers_alone(bench: Callable[..., Any]) -> None:
    pair = bench(VLLM).served
    tried = steps(first_candidates(pair, decision(Arm.PLAIN), refused_by_vllm(), lambda: False))
    assert {server for _, _, server in tried} == {"8", "9"}
    broken = pair.fallback.replicas[0]
    assert has_elsewhere(pair, broken)
    again = steps(resume_candidates(pair, decision(Arm.PLAIN), refused_by_vllm(), broken, lambda: False))
    assert {server for _, _, server in again} == {"8", "9"}
    tried = steps(first_candidates(pair, decision(Arm.PLAIN), request(GREEDY), lambda: False))
    assert {server for _, _, server in tried} == {"1", "2"}


@pytest.mark.integration
async def test_a_server_that_has_not_said_what_it_can_draft_gets_the_request_plainly(bench: Callable[..., Any]) -> None:
    tried = list(first_candidates(bench(VLLM).served, decision(), request(GREEDY), lambda: False))
    assert {(each.decision.arm, each.decision.reason, each.decision.draft_length) for each in tried} == {
        (Arm.PLAIN, Reason.ENGINE_UNVERIFIED, 0)
    }
