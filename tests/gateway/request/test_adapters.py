"""Requests for LoRA adapters: the servers that they go to, and what clients see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import yaml
from slipstream_gateway.fleet.loaded_models import INTERVAL_S

from tests.gateway.gateway_thread import Gateway
from tests.gateway.openai_server import OpenAiServer
from tests.support.polling import eventually

pytestmark = pytest.mark.integration
BASE, ADAPTER = "base", "acme-sql"
WAIT_S = 3 * INTERVAL_S


def manifest(*servers: OpenAiServer, adapters: tuple[str, ...] = ("sql",)) -> str:
    listed = [{"name": name, "model": f"acme-{name}"} for name in adapters]
    engine = {"kind": "vllm", "model": BASE, "endpoints": [server.url for server in servers], "adapters": listed}
    pair = {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": "ModelPair",
        "metadata": {"name": "pair"},
        "spec": {"model": "acme", "engine": engine},
    }
    return yaml.safe_dump(pair)


def ask(served: Gateway, model: str = "acme:sql", **more: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "tokens=3"}], "temperature": 0, **more}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=30.0)


@pytest.fixture
def servers(openai_server: Callable[..., OpenAiServer]) -> tuple[OpenAiServer, ...]:
    """Six servers, more than a request may try; the last one has the adapter."""
    made = tuple(openai_server() for _ in range(6))
    for server in made:
        server.models = [BASE]
    made[-1].models = [BASE, ADAPTER]
    return made


def served_models(server: OpenAiServer) -> set[str]:
    return {request["model"] for request in server.requests}


def test_requests_go_where_the_adapter_is_loaded_from_the_first_one_on(
    servers: tuple[OpenAiServer, ...], gateway: Callable[..., Gateway]
) -> None:
    served = gateway(manifest(*servers))
    *without, owner = servers
    for stream in (False, True) * 5:
        answer = ask(served, stream=stream)
        assert answer.status_code == 200
        assert '"model":"acme:sql"' in answer.text.replace(" ", "")
    assert len(owner.requests) == 10
    assert served_models(owner) == {ADAPTER}
    assert not any(server.requests for server in without)
    assert ask(served, "acme").status_code == 200


def test_an_adapter_that_moves_is_found_again(
    servers: tuple[OpenAiServer, ...], gateway: Callable[..., Gateway]
) -> None:
    served = gateway(manifest(*servers))
    assert ask(served).status_code == 200
    servers[0].models, servers[-1].models = [BASE, ADAPTER], [BASE]
    eventually(lambda: ask(served).status_code == 200)
    assert served_models(servers[0]) == {ADAPTER}
    assert served.metric("slipstream_replica_state", pair="pair", arm="plain", state="closed") == 6


def test_an_adapter_that_no_server_has_loaded_is_an_error_that_names_it(
    openai_server: Callable[..., OpenAiServer], gateway: Callable[..., Gateway]
) -> None:
    server = openai_server()
    server.models = [BASE]
    served = gateway(manifest(server))
    for _ in range(3):
        answer = ask(served)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "No server has loaded the adapter 'acme:sql'."
        assert "retry-after" in answer.headers
    assert ask(served, "acme").status_code == 200  # the server itself is as healthy as before
    assert served.metric("slipstream_replica_state", pair="pair", arm="plain", state="closed") == 1


def test_a_server_that_loads_adapters_at_their_first_request_gets_one(
    openai_server: Callable[..., OpenAiServer], gateway: Callable[..., Gateway]
) -> None:
    """As vLLM with a resolver: it lists an adapter only after that."""
    server = openai_server()
    server.models = [BASE]
    served = gateway(manifest(server))
    server.models = []  # it lists nothing, and takes every name
    assert ask(served).status_code == 200
    assert served_models(server) == {ADAPTER}


def test_an_error_for_another_reason_says_nothing_of_the_adapter(
    openai_server: Callable[..., OpenAiServer], gateway: Callable[..., Gateway]
) -> None:
    server = openai_server()
    server.models = [BASE, ADAPTER]
    served = gateway(manifest(server))
    messages = [{"role": "user", "content": "status=404"}]
    assert ask(served, messages=messages).status_code == 404
    assert ask(served).status_code == 200


def test_a_stream_resumes_on_a_server_with_the_adapter(
    openai_server: Callable[..., OpenAiServer], gateway: Callable[..., Gateway]
) -> None:
    made = [openai_server() for _ in range(4)]
    for server in made:
        server.models = [BASE, ADAPTER]
    made[0].models = [BASE]
    policy = {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": "SpeculationPolicy",
        "metadata": {"name": "policy"},
        "spec": {"pair": "pair", "resume": "text"},
    }
    served = gateway(f"{manifest(*made)}---\n{yaml.safe_dump(policy)}")
    messages = [{"role": "user", "content": "tokens=6 die=3"}]
    with httpx.stream(
        "POST",
        f"{served.url}/v1/chat/completions",
        json={"model": "acme:sql", "messages": messages, "stream": True, "temperature": 0},
        timeout=30.0,
    ) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if "content" in line)
        text = "\n".join([first, *lines])
    used = [server for server in made if server.requests]
    assert len(used) >= 2
    assert made[0] not in used
    assert all(served_models(server) == {ADAPTER} for server in used)
    assert '"model":"acme:sql"' in text.replace(" ", "")


def test_an_adapter_that_the_manifest_does_not_have_is_no_model(
    servers: tuple[OpenAiServer, ...], gateway: Callable[..., Gateway]
) -> None:
    served = gateway(manifest(*servers))
    answer = ask(served, "acme:other")
    assert answer.status_code == 404
    assert "acme:other" in answer.json()["error"]["message"]


def test_clients_see_adapters_among_the_models(
    servers: tuple[OpenAiServer, ...], gateway: Callable[..., Gateway]
) -> None:
    for server in servers:
        server.max_model_len = 512
    served = gateway(manifest(*servers, adapters=("sql", "de")))
    listed = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["acme", "acme:sql", "acme:de"]
    assert [model["parent"] for model in listed] == [None, "acme", "acme"]
    assert [model["max_model_len"] for model in listed] == [512] * 3
    assert httpx.get(f"{served.url}/v1/models/acme:de").json()["id"] == "acme:de"
    assert httpx.get(f"{served.url}/v1/models/acme:fr").status_code == 404
