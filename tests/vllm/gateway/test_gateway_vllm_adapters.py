"""LoRA adapters on real vLLM with the plugin: one of two servers has the adapter."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.gateway_thread import Gateway
from tests.support.lora import RANK, write_adapter
from tests.support.streams import whole_events_of
from tests.vllm.gateway.conftest import manifest
from tests.vllm.gateway.vllm_answers import MODEL, WAIT_S, answered, ask, body, until_reason

pytestmark = pytest.mark.slow  # a server of its own; tests/gateway has adapters with scripted servers
ADAPTER = "styled"  # by its name on the server
NAME = f"{MODEL}:style"


@pytest.fixture(scope="module")
def adapter_server(tmp_path_factory: pytest.TempPathFactory, start_vllm: Callable[..., VllmServer]) -> VllmServer:
    folder = write_adapter(tmp_path_factory.mktemp("lora") / "style")
    module = json.dumps({"name": ADAPTER, "path": str(folder)})
    return start_vllm(extra=("--enable-lora", "--lora-modules", module, f"--max-lora-rank={max(RANK, 8)}"))


@pytest.fixture(scope="module")
def adapted(start_gateway: Callable[..., Gateway], adapter_server: VllmServer, vllm_server: VllmServer) -> Gateway:
    text = manifest([vllm_server.url, adapter_server.url])
    engine = f"adapters: [{{name: style, model: {ADAPTER}}}], endpoints:"
    served = start_gateway(text.replace("endpoints:", engine))
    until_reason(served, "client_asked", model=NAME)
    return served


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_answers_are_the_adapters_and_come_from_the_server_that_has_it(
    adapted: Gateway, adapter_server: VllmServer, vllm_server: VllmServer
) -> None:
    url = f"{adapter_server.url}/v1/chat/completions"
    expected = text_of(httpx.post(url, json=body(model=ADAPTER), timeout=WAIT_S))
    base = text_of(httpx.post(url, json=body(), timeout=WAIT_S))
    assert expected != base
    before = answered(adapter_server.url), answered(vllm_server.url)
    answers = [ask(adapted, mode, model=NAME) for mode in ("plain", "speculative") * 3]
    assert [answer.headers["x-slipstream-arm"] for answer in answers] == ["plain", "speculative"] * 3
    assert {text_of(answer) for answer in answers} == {expected}
    assert {answer.json()["model"] for answer in answers} == {NAME}
    assert answered(adapter_server.url) == before[0] + 6
    assert answered(vllm_server.url) == before[1]
    assert text_of(ask(adapted, "speculative")) == base


def test_drafts_of_the_base_model_are_accepted_and_counted(adapted: Gateway) -> None:
    usage = ask(adapted, "speculative", model=NAME, length=4).json()["usage"]
    counts = usage["completion_tokens_details"]
    drafted = counts["accepted_prediction_tokens"] + counts["rejected_prediction_tokens"]
    assert drafted > 0
    usage = ask(adapted, "plain", model=NAME).json()["usage"]
    counts = usage.get("completion_tokens_details") or {}
    assert not counts.get("accepted_prediction_tokens")


def test_a_stream_has_the_clients_name_of_the_adapter(adapted: Gateway) -> None:
    answer = ask(adapted, "speculative", model=NAME, stream=True)
    assert answer.status_code == 200
    events = whole_events_of(answer.text)
    assert {event["model"] for event in events} == {NAME}
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert text == text_of(ask(adapted, "plain", model=NAME))


def test_scores_of_a_prompt_are_refused_since_they_would_end_the_server(adapted: Gateway) -> None:
    for model in (MODEL, NAME):
        answer = ask(adapted, model=model, prompt_logprobs=1)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt_logprobs"
    assert ask(adapted, model=NAME).status_code == 200
