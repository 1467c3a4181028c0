"""Before the first byte another server is tried; after it the stream ends with an explicit error."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from slipstream_core.settings import Deadlines, HealthSettings

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S
from tests.support.ports import dead_url
from tests.support.streams import events_of

SPECULATE = {"x-slipstream-mode": "speculative"}


def post(url: str, body: dict[str, Any], **options: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_dead_replica_is_passed_over(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], stream: bool
) -> None:
    alive = openai_server()
    served = gateway(manifest_text([dead_url(), alive.url]))
    for _ in range(6):
        assert post(served.url, chat("tokens=2", stream=stream)).status_code == 200
    assert len(alive.requests) == 6
    assert served.metric("slipstream_upstream_errors_total", error="UpstreamUnavailable") >= 1


@pytest.mark.parametrize("script", ["die=0", "status=500", "status=503", "status=429", "garbage", "die=0 stream"])
def test_speculative_arm_that_fails_before_the_first_byte_falls_back_to_plain(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], script: str
) -> None:
    speculative, plain = openai_server(), openai_server()
    served = gateway(manifest_text([plain.url], [speculative.url]))
    body = {"model": "acme", "messages": [{"role": "user", "content": script}], "stream": "stream" in script}
    response = post(served.url, body, headers=SPECULATE)
    assert len(plain.requests) >= 1
    assert len(speculative.requests) >= 1
    assert response.status_code in (429, 502, 503)  # the plain server plays the same script
    assert "127.0.0.1" not in response.text


def test_fallen_back_answer_says_so(gateway: Callable[..., Any], openai_server: Callable[..., Any]) -> None:
    plain = openai_server()
    served = gateway(manifest_text([plain.url], [dead_url()]))
    response = post(served.url, chat("tokens=2", stream=True), headers=SPECULATE)
    assert response.status_code == 200
    assert response.headers["x-slipstream-arm"] == "plain"
    assert response.headers["x-slipstream-reason"] == "speculative_unavailable"
    assert response.headers["x-slipstream-draft-length"] == "0"
    assert served.metric("slipstream_requests_total", arm="plain", reason="speculative_unavailable") == 1


def test_nothing_up_is_503_with_retry_after_and_works_once_a_server_is_back(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    url = dead_url()
    served = gateway(manifest_text([url]))
    for _ in range(4):
        response = post(served.url, chat("tokens=2"))
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "upstream_unavailable"
        assert url not in response.text
    assert httpx.get(f"{served.url}/health/ready").status_code == 503
    openai_server(int(url.rpartition(":")[2]))
    assert post(served.url, chat("tokens=2")).status_code == 200  # at once, whatever the back-off says


def test_upstream_4xx_is_passed_through_and_not_retried(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    first, second = openai_server(), openai_server()
    served = gateway(manifest_text([first.url, second.url]))
    response = post(served.url, chat("status=422"))
    assert (response.status_code, response.json()["error"]["code"]) == (422, "scripted")
    assert len(first.requests) + len(second.requests) == 1


@pytest.mark.parametrize("script", ["tokens=9 die=3", "tokens=3 early-end"])
def test_stream_that_breaks_ends_with_an_error_event_and_is_not_repeated(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], script: str
) -> None:
    first, second = openai_server(), openai_server()
    served = gateway(manifest_text([first.url, second.url]))
    response = post(served.url, chat(script, stream=True))
    events = events_of(response.text)
    assert response.status_code == 200
    texts = [choice["delta"].get("content") for event in events[:-1] for choice in event["choices"]]
    assert [text for text in texts if text] == ["w0 ", "w1 ", "w2 "]
    assert response.headers["x-slipstream-resumable"] == "false"
    assert events[-1]["error"]["code"] == "stream_interrupted"
    assert events[-1]["error"]["message"].endswith("The answer is not complete.")
    assert "127.0.0.1" not in events[-1]["error"]["message"]
    assert len(first.requests) + len(second.requests) == 1
    assert served.metric("slipstream_requests_total", status="upstream_failed") == 1
    assert served.metric("slipstream_upstream_errors_total", error="UpstreamFailed") == 1
    assert served.metric("slipstream_resumed_total", cause="upstream_failed", result="not_resumable") == 1
    assert post(served.url, chat("tokens=1")).status_code == 200


def test_deadlines_end_slow_starts_and_silent_streams(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    limits = Deadlines(connect_s=PATIENCE_S, first_chunk_s=3.0, between_chunks_s=3.0, total_s=6.0)
    served = gateway(manifest_text([openai_server().url]), deadlines=limits)
    bodies = [
        chat("slow=30", stream=True),
        chat("tokens=3 gap=30", stream=True),
        chat("slow=30"),
        chat("tokens=1000 gap=0.05", stream=True),
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        slow, silent, whole, endless = pool.map(lambda body: post(served.url, body), bodies)
    assert (slow.status_code, slow.json()["error"]["code"]) == (504, "upstream_timeout")
    interrupted = events_of(silent.text)[-1]
    assert interrupted["error"]["code"] == "stream_interrupted"
    assert "next chunk" in interrupted["error"]["message"]
    assert whole.status_code == 504
    assert events_of(endless.text)[-1]["error"]["code"] == "upstream_timeout"


def test_streams_that_go_silent_take_their_server_out(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    deadlines = Deadlines(connect_s=PATIENCE_S, between_chunks_s=1)
    health = HealthSettings(first_ejection_s=PATIENCE_S)  # it outlasts the check
    served = gateway(manifest_text([openai_server().url], [openai_server().url]), deadlines=deadlines, health=health)
    body = chat("tokens=3 gap=30", stream=True)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: post(served.url, body, headers=SPECULATE), range(6)))
    assert all(events_of(answer.text)[-1]["error"]["code"] == "stream_interrupted" for answer in answers)
    after = post(served.url, chat("tokens=1"), headers=SPECULATE)
    assert after.headers["x-slipstream-reason"] == "speculative_unavailable"
    assert served.metric("slipstream_upstream_errors_total", error="UpstreamTimeout") == 6


def test_features_that_only_one_arm_has_go_there(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    plain, speculative = openai_server(), openai_server()
    served = gateway(manifest_text([plain.url], [speculative.url]))
    response = post(served.url, chat("tokens=1", logprobs=True), headers=SPECULATE)
    assert response.headers["x-slipstream-reason"] == "unsupported_parameter"
    assert plain.requests[0]["logprobs"] is True
