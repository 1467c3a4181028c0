"""The application around a small engine: access, limits, large bodies, names, shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from slipstream_engine.openai.app import create_app
from slipstream_engine.openai.command import main
from slipstream_engine.openai.errors import Refusal
from slipstream_engine.serving.service import EngineService

from tests.engine.requests_and_answers import Make
from tests.support.polling import soon
from tests.support.streams import whole_events_of

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "delivery delay"}], "max_tokens": 8, "temperature": 0}
KEY = {"authorization": "Bearer key"}
Client = Callable[..., httpx.AsyncClient]


@pytest.fixture
def services() -> list[EngineService]:
    """Those that `client` starts."""
    return []


@pytest.fixture
async def client(make_engine: Make, services: list[EngineService], async_exit_stack: AsyncExitStack) -> Client:
    """A client of an application: `client(key, address, max_slots=1)`."""

    def connect(key: str | None = None, address: str = "127.0.0.1", **settings: Any) -> httpx.AsyncClient:
        service = EngineService(make_engine("close", **settings), method="model")
        service.begin()
        services.append(service)
        async_exit_stack.callback(service.close)
        transport = httpx.ASGITransport(create_app(service, model="small", api_key=key), client=(address, 1))
        opened = httpx.AsyncClient(transport=transport, base_url="http://engine")
        async_exit_stack.push_async_callback(opened.aclose)
        return opened

    return connect


async def test_a_key_is_required_where_there_is_one(client: Client) -> None:
    http = client("key")
    for headers, status in (({}, 401), ({"authorization": "Bearer other"}, 401), (KEY, 200)):
        assert (await http.post(CHAT, json=ASK, headers=headers)).status_code == status
        assert (await http.get("/slipstream", headers=headers)).status_code == status
        assert (await http.get("/v1/models", headers=headers)).status_code == status
        assert (await http.put("/slipstream/limit", json={"limit": 1}, headers=headers)).status_code == status
    assert (await http.get("/health")).status_code == 200


async def test_without_a_key_only_loopback_clients_change_the_server(client: Client) -> None:
    http = client(address="10.0.0.9")
    assert (await http.post(CHAT, json=ASK)).status_code == 200
    assert (await http.get("/slipstream")).status_code == 200
    assert (await http.put("/slipstream/limit", json={"limit": 1})).status_code == 403
    assert (await http.post("/slipstream/stop_drafting")).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://site.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}],
    ids=["origin", "null", "sec-fetch-site"],
)
async def test_a_web_page_changes_nothing_without_a_key(client: Client, headers: dict[str, str]) -> None:
    http = client()
    refused = await http.put("/slipstream/limit", json={"limit": 0}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "invalid_request_error")
    assert (await http.post("/slipstream/stop_drafting", headers=headers)).status_code == 403
    assert (await http.get("/slipstream/limit")).json() == {"limit": None}
    assert (await http.put("/slipstream/limit", json={"limit": 0})).json() == {"limit": 0}


async def test_a_large_body_of_a_limit_is_refused(client: Client) -> None:
    refused = await client().put("/slipstream/limit", content=b'{"limit": 1' + b" " * 2000 + b"}")
    assert refused.status_code == 413


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        (CHAT, {"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        (CHAT, {"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
        (CHAT, {"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"),
        (CHAT, {"max_completion_tokens": 0, "max_tokens": None}, "max_completion_tokens"),
        (CHAT, {"stop": [""]}, "stop"),
        ("/v1/completions", {"prompt": [[1]] * 1025}, "prompt"),
        ("/v1/completions", {"prompt": [[1]] * 3, "n": 512}, "prompt"),
    ],
)
async def test_a_value_out_of_bounds_is_refused(client: Client, path: str, more: dict[str, Any], field: str) -> None:
    body = {**ASK, **more} if path == CHAT else more
    refused = await client().post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


def test_an_error_of_the_engine_is_the_servers() -> None:
    assert b'"type":"server_error"' in Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "x").body()


async def test_more_choices_than_the_engine_holds_are_refused_by_name(client: Client) -> None:
    http = client(max_slots=1, max_waiting=1)
    for path, body, field in ((CHAT, {**ASK, "n": 3}, "n"), ("/v1/completions", {"prompt": ["a"] * 3}, "prompt")):
        refused = await http.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_a_full_engine_refuses_all_choices(client: Client) -> None:
    http = client(max_slots=1, max_waiting=1)
    asked = [http.post(CHAT, json={**ASK, "n": 2, "max_tokens": 64}) for _ in range(3)]
    statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert set(statuses) == {200, 429}

    async def fits() -> bool:
        return (await http.post(CHAT, json={**ASK, "n": 2})).status_code == 200

    await soon(fits, "the refused choices have left")


async def test_a_large_body_is_answered(client: Client) -> None:
    answer = await client().post(CHAT, json={**ASK, "metadata": {"note": "x" * 40_000}})
    assert answer.status_code == 200


async def test_a_body_that_is_too_large_is_refused_before_its_end(client: Client) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(65):
            yield bytes(1 << 20)
        pytest.fail("the rest of the body was read")

    answer = await client().post(CHAT, content=parts())
    assert answer.status_code == 413
    assert "67108864 bytes" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("prompt_logprobs", 1),
        ("bad_words", ["x"]),
        ("anything", 1),
        ("tool_choice", "required"),
    ],
)
async def test_a_field_without_support_is_refused(client: Client, field: str, value: object) -> None:
    refused = await client().post(CHAT, json={**ASK, field: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_fields_without_effect_are_accepted(client: Client) -> None:
    neutral = {"user": "u", "store": True, "tools": [], "tool_choice": "auto", "best_of": 1, "suffix": None}
    assert (await client().post(CHAT, json={**ASK, **neutral})).status_code == 200


async def test_an_echo_begins_with_the_prompt(client: Client) -> None:
    http = client()
    body = {"prompt": ["ab", "cd"], "max_tokens": 4, "temperature": 0, "n": 2, "seed": 1}
    plain = (await http.post("/v1/completions", json=body)).json()["choices"]
    echoed = (await http.post("/v1/completions", json={**body, "echo": True})).json()["choices"]
    assert [each["text"] for each in echoed] == [
        prompt + each["text"] for prompt, each in zip(("ab", "ab", "cd", "cd"), plain, strict=True)
    ]


async def test_a_streamed_echo_precedes_text_that_is_held_back(client: Client) -> None:
    http = client()
    body = {"prompt": "ab", "max_tokens": 6, "temperature": 0, "echo": True, "structured_outputs": {"regex": "d{9}"}}
    whole = (await http.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    assert whole == "abdddddd"
    streamed = await http.post("/v1/completions", json={**body, "stream": True, "stop": ["dd\u2603"]})
    assert "".join(event["choices"][0]["text"] for event in whole_events_of(streamed.text)) == whole


async def test_a_closed_engine_refuses(client: Client, services: list[EngineService]) -> None:
    http = client()
    services[0].close()
    assert (await http.get("/health")).status_code == 503
    assert (await http.post(CHAT, json=ASK)).status_code == 503


@pytest.mark.parametrize(
    ("setting", "problem"),
    [("speed=9", "no setting 'speed'"), ("max_slots=0", "max_slots"), ("target=/nothing", "no config.json")],
)
def test_a_wrong_setting_ends_the_command(setting: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", setting]) == 1
    assert problem in capsys.readouterr().err
