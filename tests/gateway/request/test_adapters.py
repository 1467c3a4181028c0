"""Requests for LoRA adapters: the servers that they go to, and what clients see."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from slipstream_gateway.fleet.loaded_models import INTERVAL_S

from tests.gateway.conftest import Gateway, OpenAiServer

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
    body = {"model": model, "messages": [{"role": "user", "content": "tokens=3"}], **more}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=30.0)


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def servers(openai_server: Callable[..., OpenAiServer]) -> tuple[OpenAiServer, ...]:
    """One server with the adapter among four: more than a request may try."""
    made = tuple(openai_server() for _ in range(6))
    for server in made:
        server.models = [BASE]
    made[-1].models = [BASE, ADAPTER]
    return made


def served_models(server: OpenAiServer) -> set[str]:
    return {request["model"] for request in server.requests}


def test_a_request_goes_where_the_adapter_is_loaded(
    tmp_path: Path, servers: tuple[OpenAiServer, ...], gateway: Callable[..., Gateway]
) -> None:
    served = gateway(manifest(*servers))
    until(lambda: ask(served).status_code == 200)
    *without, owner = servers
    before = len(owner.requests)
    for stream in (False, True) * 5:
        answer = ask(served, stream=stream)
        assert answer.status_code == 200
        assert '"model":"acme:sql"' in answer.text.replace(" ", "")
    assert len(owner.requests) == before + 10
    assert served_models(owner) == {ADAPTER}
    for server in without:
        assert ADAPTER not in served_models(server) or len(server.requests) <= 4  # before it said what it has
    assert ask(served, "acme").status_code == 200


def test_an_adapter_that_moves_is_found_again(
    servers: tuple[OpenAiServer, ...], gateway: Callable[..., Gateway]
) -> None:
    served = gateway(manifest(*servers))
    until(lambda: ask(served).status_code == 200)
    servers[0].models, servers[-1].models = [BASE, ADAPTER], [BASE]
    until(lambda: ask(served).status_code == 200)
    before = len(servers[0].requests)
    assert ask(served).status_code == 200
    assert len(servers[0].requests) == before + 1


def test_an_adapter_that_no_server_has_loaded_is_an_error_that_names_it(
    openai_server: Callable[..., OpenAiServer], gateway: Callable[..., Gateway]
) -> None:
    server = openai_server()
    server.models = [BASE]
    served = gateway(manifest(server))
    until(lambda: ask(served).status_code == 503)
    answer = ask(served)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "No server has loaded the adapter 'acme:sql'."
    assert ask(served, "acme").status_code == 200  # the server itself is as healthy as before
    assert served.metric("slipstream_replica_state", pair="pair", arm="plain", state="closed") == 1


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
    served = gateway(manifest(*servers, adapters=("sql", "de")))
    listed = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["acme", "acme:sql", "acme:de"]
    assert httpx.get(f"{served.url}/v1/models/acme:de").json()["id"] == "acme:de"
    assert httpx.get(f"{served.url}/v1/models/acme:fr").status_code == 404
