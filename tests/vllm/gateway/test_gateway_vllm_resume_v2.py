"""Streams of one server with vLLM's V2 model runner go on at a second one, with the same tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.gateway_thread import Gateway
from tests.gateway.serving.triton_streams import QUIET, SPECULATIVE, Streamed, stream
from tests.support.breaking_network import BreakingNetwork, Cut
from tests.support.polling import PATIENCE_S
from tests.vllm.gateway.conftest import manifest
from tests.vllm.gateway.vllm_answers import CALL, until_reason

# The V2 runner in an interpreter; test_gateway_vllm_resume.py has the V1 runner.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# Cuts are before the answer's last token, also if each event has all tokens of an accepted draft: a stream with all its
# tokens, and without its end, does not resume.
FEWEST_BYTES, MOST_BYTES = 800, 2500
MAX_TOKENS = 48


class Pool(NamedTuple):
    """A gateway whose first server breaks as `network` says."""

    gateway: Gateway
    network: BreakingNetwork


@pytest.fixture(scope="module")
def pool(start_vllm_v2: Callable[..., VllmServer], start_gateway: Callable[..., Gateway]) -> Iterator[Pool]:
    first, second = (start_vllm_v2(extra=("--async-scheduling",)) for _ in range(2))
    network = BreakingNetwork(int(first.url.rpartition(":")[2]), 1)
    # The interpreter is silent for seconds on a busy machine.
    gateway = start_gateway(manifest([f"http://127.0.0.1:{network.ports[0]}", second.url]), stall_s=PATIENCE_S)
    until_reason(gateway, "client_asked")
    yield Pool(gateway, network)
    network.stop()
    for server in (first, second):
        server.stop()


def answer(pool: Pool, body: dict[str, Any]) -> Streamed:
    with stream(pool.gateway, SPECULATIVE | QUIET, **body) as response:
        found = Streamed(response)
        found.read()
    return found


def resumed_streams(pool: Pool, count: int) -> list[str]:
    """Cut `count` streams at random bytes. Returns: the texts that differ from those of undisturbed streams."""
    draw, wrong, resumed, number = random.Random(count), [], 0, 0
    while resumed < count:
        number += 1
        heat = draw.choice([{"temperature": 0}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.8, "top_k": 40}])
        body = {"prompt": CALL[: draw.randint(60, len(CALL))], "max_tokens": MAX_TOKENS, "ignore_eos": True, **heat}
        whole = answer(pool, {**body, "seed": number})
        pool.network.plan(Cut(draw.randint(FEWEST_BYTES, MOST_BYTES)))
        found = answer(pool, {**body, "seed": number})
        pool.network.plan()
        if not found.usage["slipstream"]["resumed"]:  # the second server had it, or the cut came after its end
            continue
        resumed += 1
        counts = [one.usage[name] for one in (found, whole) for name in ("prompt_tokens", "completion_tokens")]
        if found.text != whole.text or counts[:2] != counts[2:]:
            wrong.append(f"{body}: {found.text!r} {counts}, not {whole.text!r}")
    return wrong


def test_some_streams_go_on_with_the_same_tokens(pool: Pool) -> None:
    assert resumed_streams(pool, 2) == []


@pytest.mark.slow(in_quarters=False)
@pytest.mark.timeout(3600)
def test_streams_go_on_with_the_same_tokens(pool: Pool) -> None:
    assert resumed_streams(pool, 100) == []


def test_a_sampled_stream_without_a_seed_can_be_repeated_by_the_gateways(pool: Pool) -> None:
    body = {"prompt": CALL, "max_tokens": 16, "temperature": 1.8}
    first = answer(pool, body)
    assert answer(pool, {**body, "seed": first.usage["slipstream"]["seed"]}).text == first.text
