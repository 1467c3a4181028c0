"""The control routes in an application like vLLM's, with an engine of the test's behind them."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from scripted import configuration
from slipstream_vllm.hooks import is_wrapped
from slipstream_vllm.request_id import client_id
from slipstream_vllm.routes import Control
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.plugins.endpoint_plugins.interface import attach_endpoint_plugins, init_endpoint_plugins_state

TARGET = os.environ["SLIPSTREAM_TARGET"]
REMOTE, LOCAL = "203.0.113.9", "127.0.0.1"
CHANGES = (
    ("PUT", "/slipstream/limit", {"limit": 0}),
    ("PUT", "/slipstream/requests/chatcmpl-a", {"draft_length": 0}),
    ("POST", "/slipstream/stop_drafting", {}),
)


class Core:
    """vLLM's client of one engine; `stuck`: the engine never comes to the end of its step."""

    core_engines = (b"0",)

    def __init__(self) -> None:
        self.stuck = False
        self.calls: list[tuple[object, ...]] = []

    async def _call_utility_async(self, method: str, *args: object, engine: bytes) -> object:
        self.calls.append((method, *args))
        if self.stuck:
            await asyncio.Event().wait()
        return None if method == "slipstream_limit" else 1


@pytest.fixture(scope="module")
def config() -> Any:
    return configuration(TARGET, asynchronous=False)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def app(config: Any, core: Core) -> FastAPI:
    return started("slipstream_vllm.Scheduler", SimpleNamespace(engine_core=core, vllm_config=config))


def started(scheduler: str | None, client: Any) -> FastAPI:
    """What vLLM does at start: routes first, then the engine."""
    made = FastAPI()
    made.state.args = Namespace(scheduler_cls=scheduler, api_key=None)
    attach_endpoint_plugins(made, ("generate",))
    asyncio.run(init_endpoint_plugins_state(client, made.state, made.state.args))
    return made


def call(app: FastAPI, host: str, method: str, path: str, body: object = None, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(host, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.request(method, path, json=body, **options)

    return asyncio.run(send())


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_without_a_token_a_remote_client_changes_nothing(
    app: FastAPI, core: Core, method: str, path: str, body: object
) -> None:
    refused = call(app, REMOTE, method, path, body)
    assert refused.status_code == 403
    assert "set SLIPSTREAM_VLLM_TOKEN" in refused.json()["error"]["message"]
    assert core.calls == []
    assert call(app, LOCAL, method, path, body).status_code == 200
    assert len(core.calls) == 1


@pytest.mark.parametrize("header", ["origin", "sec-fetch-site"])
@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_without_a_token_a_web_page_changes_nothing(
    app: FastAPI, core: Core, method: str, path: str, body: object, header: str
) -> None:
    refused = call(app, LOCAL, method, path, body, headers={header: "cross-site"})
    assert refused.status_code == 403
    assert "Web pages must not change this server" in refused.json()["error"]["message"]
    assert core.calls == []


def test_a_body_that_is_nested_too_deeply_is_refused(app: FastAPI) -> None:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(LOCAL, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.put("/slipstream/limit", content=b"[" * 100_000)

    assert asyncio.run(send()).status_code == 400


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("token", [None, "token"])
@pytest.mark.parametrize("host", [REMOTE, LOCAL])
@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_an_api_key_of_vllm_reads_and_changes_nothing(
    app: FastAPI, core: Core, config: Any, method: str, path: str, body: object, host: str, token: str | None
) -> None:
    client = SimpleNamespace(engine_core=core, vllm_config=config)
    app.state.slipstream = Control(client, token=token, api_keys=["key", "other"])
    for key in ("key", "other"):
        assert call(app, host, "GET", "/slipstream", headers=bearer(key)).status_code == 200
        core.calls.clear()
        refused = call(app, host, method, path, body, headers=bearer(key))
        assert refused.status_code == 403
        assert "set SLIPSTREAM_VLLM_TOKEN" in refused.json()["error"]["message"]
        assert core.calls == []
    assert call(app, host, method, path, body).status_code == 401
    expected = 401 if token is None else 200
    assert call(app, host, method, path, body, headers=bearer("token")).status_code == expected


def test_a_token_that_is_also_an_api_key_of_vllm_changes(app: FastAPI, core: Core, config: Any) -> None:
    client = SimpleNamespace(engine_core=core, vllm_config=config)
    app.state.slipstream = Control(client, token="gateway", api_keys=["clients", "gateway"])
    assert call(app, REMOTE, "PUT", "/slipstream/limit", {"limit": 0}, headers=bearer("gateway")).status_code == 200
    assert call(app, REMOTE, "PUT", "/slipstream/limit", {"limit": 0}, headers=bearer("clients")).status_code == 403


def test_without_a_token_a_remote_client_reads(app: FastAPI) -> None:
    assert call(app, REMOTE, "GET", "/slipstream/limit").json() == {"limit": None}
    described = call(app, REMOTE, "GET", "/slipstream").json()
    assert described["max_draft_length"] == 4
    assert described["acceptance"] == "equality"


@pytest.mark.parametrize(("method", "path", "body"), [*CHANGES, ("GET", "/slipstream", None)])
def test_a_stuck_engine_gets_504(app: FastAPI, core: Core, config: Any, method: str, path: str, body: object) -> None:
    core.stuck = True
    app.state.slipstream = Control(SimpleNamespace(engine_core=core, vllm_config=config), deadline_s=0.05)
    answer = call(app, LOCAL, method, path, body)
    assert answer.status_code == 504
    assert answer.json()["error"] == {
        "message": "The engine did not answer within 0.05 s; a change may still take effect.",
        "type": "GatewayTimeoutError",
        "param": None,
        "code": 504,
    }


@pytest.mark.parametrize("sent", ["a/b", "a/b/c", "a%2Fb", "a b", "a"])
def test_an_id_of_the_client_reaches_the_engine(app: FastAPI, core: Core, sent: str) -> None:
    answer = call(app, LOCAL, "PUT", f"/slipstream/requests/chatcmpl-{sent}", {"draft_length": 1})
    assert answer.json() == {"changed": 1}
    seen = f"chatcmpl-{sent}".replace("%2F", "/")
    assert core.calls == [("slipstream_set_length", seen, 1)]
    assert client_id(f"{seen}-1f2e3d4c") == seen


def test_another_scheduler_means_no_routes_and_no_counts(
    config: Any, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = OpenAIServingResponses.responses_full_generator
    monkeypatch.setattr(OpenAIServingResponses, "responses_full_generator", getattr(generate, "__wrapped__", generate))
    client = SimpleNamespace(engine_core=core, vllm_config=config)
    app = started(None, client)
    assert [route.path for route in app.routes if "slipstream" in getattr(route, "path", "")] == []
    assert call(app, LOCAL, "GET", "/slipstream").status_code == 404
    assert not is_wrapped(OpenAIServingResponses, "responses_full_generator")
    started("slipstream_vllm.Scheduler", client)
    assert is_wrapped(OpenAIServingResponses, "responses_full_generator")
