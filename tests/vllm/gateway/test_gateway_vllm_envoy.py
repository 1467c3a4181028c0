"""vLLM with the plugin behind a real Envoy, whose external processor sets the draft length of each request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import openai
import pytest
from slipstream_core.settings import GatewaySettings
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.envoy.conftest import MODES
from tests.gateway.gateway_thread import Gateway
from tests.support.envoy import Envoy
from tests.support.polling import eventually
from tests.support.ports import lasting_ports
from tests.vllm.gateway.conftest import MODEL, manifest

PROMPT = [{"role": "user", "content": "Summarise this call for the CRM.\n\nCustomer: I was charged twice, 89.90 EUR."}]

LENGTHS = {"plain": 0, "speculative": 3}


class Served(NamedTuple):
    envoy: Envoy
    gateway: Gateway
    client: openai.OpenAI


@pytest.fixture(scope="module", params=MODES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, vllm_server: VllmServer
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("envoy")
    [filter_port] = lasting_ports(1)
    path = folder / "pair.yaml"
    path.write_text(manifest([vllm_server.url]))
    gateway = Gateway(path, GatewaySettings(manifest=path, ext_proc=f"127.0.0.1:{filter_port}"))
    port = int(vllm_server.url.rpartition(":")[2])
    envoy = Envoy(folder, filter_port=filter_port, gateway_port=gateway.port, models=[port], modes=MODES[request.param])
    client = openai.OpenAI(base_url=f"{envoy.url}/v1", api_key="unused", max_retries=0, timeout=60)
    eventually(
        lambda: gateway.metric("slipstream_replica_longest_draft", arm="speculative") == 4, "the plugin is known"
    )
    yield Served(envoy, gateway, client)
    envoy.stop()
    gateway.stop()


def asking(mode: str, length: int) -> dict[str, str]:
    """Headers that ask for an arm; a length that the client has set is drafted whether it pays or not."""
    return {"x-slipstream-mode": mode, **({"x-slipstream-draft-length": str(length)} if length else {})}


@pytest.mark.parametrize(("mode", "length"), LENGTHS.items())
def test_each_request_has_its_own_draft_length(served: Served, mode: str, length: int) -> None:
    raw = served.client.chat.completions.with_raw_response.create(
        model=MODEL, messages=PROMPT, temperature=0, max_tokens=40, extra_headers=asking(mode, length)
    )  # type: ignore[call-overload]
    assert (raw.headers["x-slipstream-arm"], raw.headers["x-slipstream-draft-length"]) == (mode, str(length))
    usage = raw.parse().usage
    assert usage.completion_tokens > 10
    counts = usage.completion_tokens_details
    drafted = counts.accepted_prediction_tokens + counts.rejected_prediction_tokens
    assert (drafted > 0) == (mode == "speculative")
    assert usage.slipstream["draft_length"] == length


def test_both_arms_stream_the_same_greedy_text_and_are_learnt_from(served: Served) -> None:
    before = {arm: answered(served, arm) for arm in LENGTHS}, served.gateway.metric("slipstream_drafted_tokens_total")
    texts = set()
    for mode, length in LENGTHS.items():
        chunks = served.client.chat.completions.create(
            model=MODEL,
            messages=PROMPT,
            temperature=0,
            max_tokens=40,
            stream=True,
            extra_headers=asking(mode, length),
        )  # type: ignore[call-overload]
        texts.add("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    assert len(texts) == 1
    for arm in LENGTHS:
        eventually(lambda arm=arm: answered(served, arm) == before[0][arm] + 1, f"the answer of {arm} was recorded")
    assert served.gateway.metric("slipstream_drafted_tokens_total") > before[1]


def answered(served: Served, arm: str) -> float:
    return served.gateway.metric("slipstream_requests_total", arm=arm, status="ok")


def test_a_client_that_leaves_ends_the_decoding(served: Served, vllm_server: VllmServer) -> None:
    stream = served.client.chat.completions.create(
        model=MODEL, messages=PROMPT, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )  # type: ignore[call-overload]
    next(iter(stream))
    stream.close()
    eventually(lambda: served.gateway.metric("slipstream_requests_total", status="cancelled") >= 1, "it was recorded")
    eventually(lambda: served.gateway.metric("slipstream_requests_in_flight") == 0, "it ended")
