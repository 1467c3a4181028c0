"""OpenAI-compatible streams that go on by their text, where the policy allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from slipstream_core.settings import Deadlines

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually
from tests.support.streams import events_of, text_of

TEXT = ", resume: text"


def post(url: str, body: dict[str, Any], path: str = "chat/completions") -> httpx.Response:
    return httpx.post(f"{url}/v1/{path}", json=body, timeout=PATIENCE_S)


@pytest.fixture
def pair(gateway: Callable[..., Any], openai_server: Callable[..., Any]) -> Callable[..., Any]:
    """A gateway with `policy` before two servers. What a continuation says is its script: three tokens."""

    def make(policy: str = TEXT) -> tuple[Any, list[Any]]:
        servers = [openai_server() for _ in range(2)]
        servers[1].answer_id = "chatcmpl-other"
        served = gateway(manifest_text([server.url for server in servers], policy=policy))
        return served, servers

    return make


def requests_of(servers: list[Any]) -> list[dict[str, Any]]:
    """What both got, the continuation last."""
    return sorted((r for server in servers for r in server.requests), key=lambda r: "continue_final_message" in r)


def test_stream_goes_on_by_its_text_as_one_stream(pair: Any) -> None:
    served, servers = pair()
    body = chat("tokens=9 die=3", stream=True, max_tokens=20, stream_options={"include_usage": True})
    response = post(served.url, body)
    assert response.headers["x-slipstream-resumable"] == "true"
    events = events_of(response.text)
    assert events[-1] == "[DONE]"
    first, second = requests_of(servers)
    assert "continue_final_message" not in first
    assert second["messages"] == [*body["messages"], {"role": "assistant", "content": "w0 w1 w2 "}]
    assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)
    assert second["max_tokens"] == 17
    assert text_of(events) == "w0 w1 w2 " + "w0 w1 w2 "
    chunks = events[:-1]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert sum("role" in choice["delta"] for chunk in chunks for choice in chunk["choices"]) == 1
    usage = next(chunk["usage"] for chunk in chunks if chunk.get("usage"))
    assert (usage["completion_tokens"], usage["total_tokens"]) == (6, usage["prompt_tokens"] + 6)
    assert served.metric("slipstream_resumed_total", cause="upstream_failed", result="resumed") == 1
    assert served.metric("slipstream_output_tokens_total") == 6


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("", {}),
        (", resume: never", {}),
        (TEXT, {"presence_penalty": 0.5}),
        (TEXT, {"response_format": {"type": "json_object"}}),
        (TEXT, {"logprobs": True}),
        (TEXT, {"stop": ["w2 w3"]}),
        (TEXT, {"stop": ["x" * 1_000_000]}),
        (TEXT, {"max_tokens": 3}),
    ],
)
def test_stream_that_would_not_go_on_exactly_ends_with_an_error(pair: Any, policy: str, more: dict[str, Any]) -> None:
    served, servers = pair(policy)
    events = events_of(post(served.url, chat("tokens=9 die=3", stream=True, **more)).text)
    assert text_of(events) == "w0 w1 w2 "
    assert events[-1]["error"]["code"] == "stream_interrupted"
    assert sum(len(server.requests) for server in servers) == 1
    assert served.metric("slipstream_resumed_total", result="not_resumable") == 1


def test_stream_that_falls_silent_goes_on_and_the_silent_call_is_cancelled(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    silent, other = openai_server(), openai_server()
    silent.pace_s = 60.0
    manifest = manifest_text([silent.url, other.url], policy=TEXT)
    served = gateway(manifest, deadlines=Deadlines(connect_s=PATIENCE_S, stall_s=2.0))
    for _ in range(2):  # they take turns
        events = events_of(post(served.url, chat("tokens=2", stream=True)).text)
        assert (text_of(events), events[-1]) == ("w0 w1 ", "[DONE]")
    assert silent.cancelled.wait(PATIENCE_S)
    assert served.metric("slipstream_resumed_total", cause="stalled", result="resumed") == 1


def test_deadline_ends_a_stream_that_looks_for_a_server(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    broken, slow = openai_server(), openai_server()
    served = gateway(manifest_text([slow.url], [broken.url], policy=TEXT))
    slow.slow_s = 60.0
    headers = {"x-slipstream-mode": "speculative", "x-request-timeout": "4"}
    url, body = f"{served.url}/v1/chat/completions", chat("tokens=9 die=3", stream=True)
    events = events_of(httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S).text)
    assert text_of(events[:-1]) == "w0 w1 w2 "
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert slow.cancelled.wait(PATIENCE_S)
    eventually(lambda: served.metric("slipstream_requests_in_flight") == 0)


def test_server_that_tells_its_failure_within_the_stream_is_left_and_its_error_is_not_shown(pair: Any) -> None:
    served, _ = pair()
    response = post(served.url, chat("tokens=4 fail=2", stream=True))
    assert "scripted failure" not in response.text
    assert text_of(events_of(response.text)) == "w0 w1 " + "w0 w1 w2 "
    assert served.metric("slipstream_resumed_total", cause="upstream_failed", result="resumed") == 1
