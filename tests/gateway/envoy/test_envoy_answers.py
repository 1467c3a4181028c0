"""Requests of OpenAI's own client through a real Envoy: decisions, answers, errors, and what is learnt."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest
from slipstream_core.settings import AccessSettings
from slipstream_gateway.upstreams.private_headers import PRIVATE

from tests.gateway.envoy.conftest import MODES, Way
from tests.gateway.key_file import Keys
from tests.support.polling import PATIENCE_S, eventually


def client(path: Way, **headers: str) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{path.envoy.url}/v1", api_key="unused", default_headers=headers, max_retries=0, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("mode", ["plain", "speculative"])
def test_the_decided_server_answers_and_the_headers_explain_it(path: Way, mode: str) -> None:
    raw = client(path).with_options(default_headers={"x-slipstream-mode": mode})
    found = raw.chat.completions.with_raw_response.create(
        model="acme", messages=[{"role": "user", "content": "tokens=4"}], max_tokens=50
    )
    assert found.headers["x-slipstream-arm"] == mode
    assert found.headers["x-slipstream-reason"] == "client_asked"
    assert found.headers["x-request-id"]
    assert found.parse().choices[0].message.content == "word " * 4
    asked, other = (path.plain, path.speculative) if mode == "plain" else (path.speculative, path.plain)
    assert (len(asked.requests), len(other.requests)) == (1, 0)
    assert asked.headers[0]["x-slipstream-arm"] == mode
    assert asked.headers[0]["x-gateway-model-name"] == "acme"  # for routes
    labels = {"arm": mode, "status": "ok"}
    eventually(lambda: path.gateway.metric("slipstream_requests_total", **labels) == 1, "it was recorded")


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_arrives_whole_and_its_usage_only_if_it_was_requested(path: Way, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    with client(path).chat.completions.create(
        model="acme", messages=[{"role": "user", "content": "tokens=30"}], stream=True, **options
    ) as stream:  # type: ignore[call-overload]
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "".join(f"w{index} " for index in range(30))
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None] == [30] * include_usage
    [asked] = path.plain.requests + path.speculative.requests
    assert asked["stream_options"]["include_usage"] is True
    eventually(lambda: path.gateway.metric("slipstream_output_tokens_total") == 30, "it was recorded")


def chat(text: str, **more: object) -> dict[str, object]:
    return {"model": "acme", "messages": [{"role": "user", "content": text}], **more}


def post(path: Way, body: object, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx.post(f"{path.envoy.url}/v1/chat/completions", content=content, headers=named, timeout=PATIENCE_S)


def test_bad_input_gets_the_gateways_own_message(path: Way) -> None:
    found = post(path, chat("tokens=3", temperature=-7))
    assert found.status_code == 400
    assert found.json()["error"]["param"] == "temperature"
    assert found.headers["content-type"] == "application/json"
    assert post(path, b"{").json()["error"]["type"] == "invalid_request_error"
    assert post(path, chat("x"), x_slipstream_mode="fast").json()["error"]["param"] == "x-slipstream-mode"
    assert not path.plain.requests + path.speculative.requests


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_a_refusal_of_the_server_passes_unchanged(path: Way, status: int) -> None:
    found = post(path, chat(f"status={status}"))
    assert (found.status_code, found.json()["error"]["message"]) == (status, "scripted")
    assert len(path.plain.requests + path.speculative.requests) == 1
    assert path.gateway.metric("slipstream_requests_total", status="ok") == 0


def test_a_large_answer_and_a_large_request_arrive_whole(path: Way) -> None:
    text = "tokens=40 big=20000 " + "pad " * 700_000
    found = post(path, chat(text, stream=True))
    assert found.text.count("word" * 20000) == 40
    [asked] = path.plain.requests + path.speculative.requests
    assert asked["messages"][0]["content"] == text


def test_a_body_above_the_limit_is_refused_with_the_limit(path: Way) -> None:
    found = post(path, chat("x" * 10_000_000))
    assert found.status_code == 413
    assert "4194304" in found.json()["error"]["message"]


def test_a_model_that_is_not_in_the_manifest_is_left_to_envoy(path: Way) -> None:
    found = post(path, {**chat("tokens=2"), "model": "someone-elses"})
    assert found.status_code == 200, (found.status_code, found.text, path.envoy.log.read_text(), path.plain.requests)
    assert found.json()["choices"][0]["message"]["content"] == "word word "
    assert "x-slipstream-arm" not in found.headers
    assert path.plain.requests[0]["model"] == "someone-elses"


def test_other_paths_are_left_to_envoy(path: Way) -> None:
    assert httpx.get(f"{path.envoy.url}/v1/models").json() == {"object": "list", "data": []}
    large = chat("tokens=2 " + "pad " * 2_000_000)
    found = httpx.post(f"{path.envoy.url}/v1/audio/speech", json=large, timeout=PATIENCE_S)
    assert found.json()["choices"][0]["message"]["content"] == "word word "
    assert path.plain.requests == [large]


def test_a_server_knows_the_model_by_another_name(start_path: Callable[..., Way]) -> None:
    path = start_path(model="theirs")
    found = post(path, chat("tokens=2"))
    assert found.json()["model"] == "acme"
    streamed = post(path, chat("tokens=2", stream=True))
    assert '"model": "acme"' in streamed.text or '"model":"acme"' in streamed.text
    assert {asked["model"] for asked in path.plain.requests + path.speculative.requests} == {"theirs"}


def test_keys_are_checked_and_never_reach_a_server(start_path: Callable[..., Way], tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.json")
    key = keys.create("--name", "client")
    path = start_path(access=AccessSettings(keys=keys.path))
    assert post(path, chat("tokens=2")).status_code == 401
    assert post(path, chat("tokens=2"), authorization="Bearer wrong").json()["error"]["code"] == "invalid_api_key"
    private = dict.fromkeys(PRIVATE, "1") | {"authorization": f"Bearer {key}"}
    found = post(path, chat("tokens=2"), **private, other="1")
    assert found.status_code == 200
    [headers] = path.plain.headers + path.speculative.headers
    assert not set(PRIVATE) & headers.keys()
    assert headers["other"] == "1"


def test_without_keys_a_clients_headers_reach_its_server(path: Way) -> None:
    assert post(path, chat("tokens=2"), **dict.fromkeys(PRIVATE, "1")).status_code == 200
    [headers] = path.plain.headers + path.speculative.headers
    assert headers.keys() >= set(PRIVATE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_the_gateways_own_key_is_not_shown(
    start_path: Callable[..., Way], monkeypatch: pytest.MonkeyPatch, mode: str, status: int
) -> None:
    monkeypatch.setenv("SERVERS_KEY", "sk-of-the-servers")
    path = start_path(modes=MODES[mode], api_key_env="SERVERS_KEY")
    for stream in (False, True):
        found = post(path, chat(f"status={status}", stream=stream), authorization="Bearer of-the-client")
        assert (found.status_code, found.json()["error"]["code"]) == (502, "upstream_failed")
        assert "scripted" not in found.text
    sent = {headers["authorization"] for headers in path.plain.headers + path.speculative.headers}
    assert sent == {"Bearer sk-of-the-servers"}


@pytest.mark.parametrize("mode", MODES)
def test_with_keys_nothing_passes_unchecked(start_path: Callable[..., Way], tmp_path: Path, mode: str) -> None:
    keys = Keys(tmp_path / "keys.json")
    key = keys.create("--name", "client")
    path = start_path(modes=MODES[mode], model="theirs", access=AccessSettings(keys=keys.path))
    by_their_name = {**chat("tokens=2"), "model": "theirs"}
    assert post(path, by_their_name).status_code == 401
    assert post(path, by_their_name, authorization=f"Bearer {key}").status_code == 404
    for other in ("/v1/chat/completions/", "//v1/chat/completions", "/v1/embeddings", "/v1/models?x=1"):
        found = httpx.post(f"{path.envoy.url}{other}", json=chat("tokens=2"), timeout=PATIENCE_S)
        assert (found.status_code, found.json()["error"]["type"]) == (404, "invalid_request_error"), other
    assert httpx.get(f"{path.envoy.url}/v1/models").status_code == 404
    assert not path.plain.requests + path.speculative.requests


@pytest.mark.parametrize("modes", [{"request_header_mode": "SKIP"}, {"request_body_mode": "NONE"}])
def test_with_keys_nothing_passes_in_modes_that_the_filter_cannot_use(
    start_path: Callable[..., Way], tmp_path: Path, modes: dict[str, str]
) -> None:
    keys = Keys(tmp_path / "keys.json")
    keys.create("--name", "client")
    path = start_path(modes=modes, access=AccessSettings(keys=keys.path))
    assert post(path, chat("tokens=2")).status_code in (404, 503)
    assert not path.plain.requests + path.speculative.requests


@pytest.mark.parametrize("mode", MODES)
def test_a_body_that_never_arrives_is_refused_and_does_not_pass_unchecked(
    start_path: Callable[..., Way], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("slipstream_gateway.extproc.exchange.BODY_TIMEOUT_S", 0.5)
    keys = Keys(tmp_path / "keys.json")
    keys.create("--name", "client")
    path = start_path(modes=MODES[mode], access=AccessSettings(keys=keys.path))
    body = json.dumps(chat("tokens=2")).encode()
    with socket.create_connection(("127.0.0.1", path.envoy.port), timeout=PATIENCE_S) as connection:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:10])
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"The request body did not arrive within 0.5 s." in answer
    assert not path.plain.requests + path.speculative.requests


def test_a_filter_in_modes_that_it_cannot_use_decides_nothing(
    start_path: Callable[..., Way], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modes = {"request_body_mode": "NONE"}
    path = start_path(modes=modes)
    with caplog.at_level(logging.ERROR, "slipstream_gateway.extproc"):
        answers = [post(path, chat("tokens=2")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert not any("x-slipstream-arm" in answer.headers for answer in answers)
    [message] = [record.getMessage() for record in caplog.records if "filter is not usable" in record.getMessage()]
    assert message.endswith("request_body_mode must be BUFFERED or FULL_DUPLEX_STREAMED")


def test_a_client_that_leaves_ends_the_servers_work(path: Way) -> None:
    with httpx.stream(
        "POST",
        f"{path.envoy.url}/v1/chat/completions",
        json=chat("tokens=500 gap=0.05", stream=True),
        timeout=PATIENCE_S,
    ) as stream:
        next(stream.iter_bytes())
    eventually(lambda: path.plain.cancelled.is_set() or path.speculative.cancelled.is_set(), "the server's work ended")
    eventually(lambda: path.gateway.metric("slipstream_requests_total", status="cancelled") == 1, "it was recorded")
    eventually(lambda: path.gateway.metric("slipstream_requests_in_flight") == 0, "it ended")


def test_a_stream_that_breaks_off_is_no_success(path: Way) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        post(path, chat("tokens=20 die=5 gap=0.02", stream=True))
    eventually(lambda: path.gateway.metric("slipstream_requests_in_flight") == 0, "the request ended")
    assert path.gateway.metric("slipstream_requests_total", status="ok") == 0


def test_a_stream_is_whole_with_its_last_event_although_the_server_lingers(path: Way) -> None:
    began_s = time.monotonic()
    with client(path).chat.completions.create(
        model="acme", messages=[{"role": "user", "content": "tokens=30 linger=60"}], stream=True
    ) as stream:  # type: ignore[call-overload]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "".join(f"w{index} " for index in range(30))
    eventually(lambda: path.gateway.metric("slipstream_requests_total", status="ok") == 1, "it was recorded")
    assert time.monotonic() - began_s < 50
    assert post(path, chat("tokens=3", stream=True)).text.endswith("data: [DONE]\n\n")  # Envoy goes on


def test_requests_at_once_get_their_own_answers(path: Way) -> None:
    found: dict[int, int] = {}

    def ask(tokens: int) -> None:
        answer = post(path, chat(f"tokens={tokens} gap=0.001", stream=tokens % 2 == 0))
        found[tokens] = answer.text.count("content") if tokens % 2 == 0 else answer.json()["usage"]["completion_tokens"]

    threads = [threading.Thread(target=ask, args=(tokens,)) for tokens in range(1, 65)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {tokens: count for tokens, count in found.items() if tokens % 2} == {n: n for n in range(1, 65, 2)}
    eventually(lambda: path.gateway.metric("slipstream_requests_total") == 64, "all were recorded")
    assert path.gateway.metric("slipstream_requests_total", status="ok") == 64
