"""A stream of a real vLLM whose connection breaks goes on at another server of the pool, by its tokens or its text."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.gateway_thread import Gateway
from tests.gateway.serving.triton_streams import SPECULATIVE, Streamed, stream
from tests.support.breaking_network import BreakingNetwork, Cut
from tests.vllm.gateway.conftest import manifest
from tests.vllm.gateway.vllm_answers import until_reason

pytestmark = pytest.mark.slow  # long answers; tests/gateway has the policies with scripted servers and with Triton
TRIES = 4  # the gateway's probes use the network, too, and the cut can meet one of them
CUT_BYTES = 200  # an event or two after those that were read
BEFORE = 5  # events


def send_at_once(server: VllmServer) -> None:
    """Lets the server send what it generates in a moment as one event. Its engine is a process of its own."""
    port = int(server.url.rpartition(":")[2])
    [pid] = {each.pid for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port}
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)
    os.kill(pid, signal.SIGCONT)


@pytest.fixture
def network(vllm_server: VllmServer) -> Iterator[BreakingNetwork]:
    network = BreakingNetwork(int(vllm_server.url.rpartition(":")[2]), 2)
    yield network
    network.stop()


def whole_answer(served: Gateway) -> Streamed:
    until_reason(served, "client_asked")
    with stream(served, SPECULATIVE) as response:
        whole = Streamed(response)
        whole.read()
    return whole


def test_a_broken_stream_ends_where_the_policy_resumes_none(
    start_gateway: Callable[..., Gateway], network: BreakingNetwork
) -> None:
    endpoints = [f"http://127.0.0.1:{port}" for port in network.ports]
    served = start_gateway(manifest(endpoints, policy=", resume: never"))
    whole = whole_answer(served)
    for _ in range(TRIES):
        with stream(served, SPECULATIVE) as response:
            found = Streamed(response)
            found.read(BEFORE)
            network.plan(Cut(CUT_BYTES))
            try:
                found.read()
            except KeyError:  # the last event is an error, without choices
                break
    else:
        pytest.fail(f"{TRIES} streams ended although their connections broke")
    assert network.made == 1
    assert whole.text.startswith(found.text)
    assert len(found.text) < len(whole.text)


@pytest.mark.parametrize("resume", ["text", "exact"])
def test_a_greedy_stream_goes_on_where_the_policy_says_so(
    start_gateway: Callable[..., Gateway], vllm_server: VllmServer, network: BreakingNetwork, resume: str
) -> None:
    endpoints = [f"http://127.0.0.1:{port}" for port in network.ports]
    served = start_gateway(manifest(endpoints, policy=f", resume: {resume}"))
    whole = whole_answer(served)
    for _ in range(TRIES):
        with stream(served, SPECULATIVE) as response:
            found = Streamed(response)
            found.read(BEFORE)
            network.plan(Cut(CUT_BYTES))
            send_at_once(vllm_server)
            found.read()
        assert network.made == 1
        assert found.text == whole.text
        if found.usage["slipstream"]["resumed"]:
            break
    own = found.usage["slipstream"]
    assert own["resumed"] in (["upstream_failed"], ["upstream_unavailable"])
    assert own["draft_length"] in (0, 2)  # greedy answers go on plainly
    assert found.usage["completion_tokens"] == whole.usage["completion_tokens"]
    assert found.text == whole.text
