"""Which replica requests with the same beginning go to, and when they do not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.types import Endpoint, GenerationRequest, Message
from slipstream_gateway.upstreams.pool.affinity import HEAD_CHARS, Affinity, head_key

from tests.gateway.openai_server import OpenAiServer

NAMES = [f"http://10.0.0.{host}:8000" for host in range(8)]
KEYS = st.integers(0, 2**64 - 1)


def chat(*contents: str) -> GenerationRequest:
    roles = ("system", *(("user", "assistant") * len(contents)))
    messages = tuple(Message(role=role, content=content) for role, content in zip(roles, contents, strict=False))
    return GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages)


def text(prompt: str | tuple[int, ...]) -> GenerationRequest:
    return GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt=prompt)


def preferred(affinity: Affinity, key: int, costs: list[float]) -> int:
    index = affinity.preferred(key, costs, [0 if cost == math.inf else int(cost) - 1 for cost in costs])
    assert index is not None
    return index


def test_requests_that_share_a_long_beginning_have_one_key() -> None:
    system = "You are the assistant of a shop. " * 40
    assert len(system) > HEAD_CHARS
    assert head_key(chat(system, "Where is my parcel?")) == head_key(chat(system, "I want my money back."))
    assert head_key(chat(system[1:], "Where is my parcel?")) != head_key(chat(system, "Where is my parcel?"))


@pytest.mark.parametrize("first", ["Where is it?", "x" * HEAD_CHARS])
def test_a_conversation_keeps_its_key_as_it_grows(first: str) -> None:
    opening = ("Be brief.", first)
    assert head_key(chat(*opening)) == head_key(chat(*opening, "yes", "and then?"))
    another = chat("Be brief.", "Who is it?")
    assert head_key(another) != head_key(chat(*opening))


def test_who_says_it_counts() -> None:
    assert head_key(chat("a", "b")) != head_key(chat("ab"))


def test_prompts_of_text_and_of_tokens_have_keys() -> None:
    assert head_key(text("a" * HEAD_CHARS + "b")) == head_key(text("a" * HEAD_CHARS + "c"))
    assert head_key(text("a")) != head_key(text("b"))
    assert head_key(text(tuple(range(300)))) == head_key(text((*range(290), 7)))
    assert head_key(text((1, 2))) != head_key(text((1, 3)))


@given(KEYS)
def test_a_key_stays_with_its_replica(key: int) -> None:
    affinity = Affinity(NAMES)
    assert preferred(affinity, key, [1.0] * 8) == preferred(affinity, key, [2.0] * 8)


@given(KEYS, st.integers(0, 7))
def test_a_replica_that_goes_changes_its_own_keys_only(key: int, gone: int) -> None:
    before = NAMES[preferred(Affinity(NAMES), key, [1.0] * 8)]
    left = [name for index, name in enumerate(NAMES) if index != gone]
    after = left[preferred(Affinity(left), key, [1.0] * 7)]
    assert after == before or before == NAMES[gone]


def test_keys_are_spread_evenly() -> None:
    affinity = Affinity(NAMES)
    found = Counter(preferred(affinity, head_key(text(f"prompt {place}")), [1.0] * 8) for place in range(8000))
    assert min(found.values()) > 850
    assert max(found.values()) < 1150


def test_no_replica_gets_far_more_than_its_share() -> None:
    """All requests have one key. A replica still gets at most a quarter more requests than the mean."""
    affinity, loads = Affinity(NAMES), [0] * 8
    for sent in range(1, 801):
        index = preferred(affinity, 7, [load + 1.0 for load in loads])
        loads[index] += 1
        assert max(loads) <= max(1.25 * sent / 8, math.ceil(sent / 8), 2)
    assert max(loads) >= 120  # no more evenly than it must


def test_a_replica_that_fails_does_not_lift_the_bound_on_the_others() -> None:
    affinity, loads = Affinity(NAMES[:4]), [3, 0, 0, 0]
    for _ in range(200):
        costs = [(load + 1) * (64.0 if index == 0 else 1.0) for index, load in enumerate(loads)]
        index = affinity.preferred(7, costs, loads)
        assert index is not None
        loads[index] += 1
    assert loads[0] == 3
    assert max(loads) <= 1.25 * 203 / 3


def test_a_replica_that_cannot_take_the_request_is_left_out() -> None:
    affinity = Affinity(NAMES)
    favourite = preferred(affinity, 12345, [1.0] * 8)
    costs = [math.inf if index == favourite else 1.0 for index in range(8)]
    assert preferred(affinity, 12345, costs) != favourite
    assert affinity.preferred(12345, [math.inf] * 8, [0] * 8) is None


@pytest.mark.integration
@pytest.mark.parametrize("is_caching", [True, False])
def test_a_gateway_sends_one_conversation_to_one_server(
    tmp_path: Path, openai_server: Callable[..., OpenAiServer], run_gateway: Callable[..., Any], is_caching: bool
) -> None:
    servers = [openai_server() for _ in range(3)]
    arm = {"protocol": "openai", "model": "m", "endpoints": [server.url for server in servers]}
    pair = {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": "ModelPair",
        "metadata": {"name": "pair"},
        "spec": {"model": "m", "engine": {"kind": "external", "arms": {"plain": arm | {"prefixCaching": is_caching}}}},
    }
    with run_gateway(tmp_path / "pair.yaml", yaml.safe_dump(pair)) as gateway:
        messages = [{"role": "system", "content": "You help. " * 200}, {"role": "user", "content": "Hello"}]
        for _ in range(9):
            body = {"model": "m", "messages": messages}
            assert httpx.post(f"{gateway.url}/v1/chat/completions", json=body).status_code == 200
    counts = sorted(sum(body.get("messages") == messages for body in server.requests) for server in servers)
    assert counts == ([0, 0, 9] if is_caching else [3, 3, 3])
