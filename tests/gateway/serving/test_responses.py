"""`/v1/responses` through the gateway: the official `openai` package as the client, a scripted server behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from slipstream_core.settings import Deadlines

from tests.gateway.pair_manifest import manifest_text
from tests.support.polling import PATIENCE_S, eventually

SUMMARY = "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. "
POLICY = ", confidence: 0.6, holdBackShare: 0, explorationShare: 0"


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=20)


def ask(url: str, script: str, **more: Any) -> Any:
    return client(url).responses.create(model="acme", input=script, **more)


@pytest.fixture
def served(gateway: Callable[..., Any], upstream: Any) -> Any:
    """One server behind both arms: the only place where a response could be kept."""
    return gateway(manifest_text([upstream.url], [upstream.url], upstream_model="org/acme-7b", policy=POLICY))


def test_response_has_text_usage_and_the_public_model_name(served: Any, upstream: Any) -> None:
    answer = ask(served.url, "tokens=4", instructions="be brief", metadata={"a": "b"}, top_p=0.5)
    assert answer.output_text == "word word word word "
    assert (answer.model, answer.id, answer.status) == ("acme", "resp_up", "completed")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 4)
    assert upstream.requests[0] == {
        "model": "org/acme-7b",
        "input": "tokens=4",
        "instructions": "be brief",
        "metadata": {"a": "b"},
        "top_p": 0.5,
    }
    assert served.metric("slipstream_output_tokens_total") == 4
    assert served.metric("gen_ai_server_request_duration_seconds_count", openai_api_type="responses") == 1


@pytest.mark.parametrize("script", ["tokens=5", "tokens=5 crlf", "tokens=5 split=7", "tokens=5 nousage"])
def test_stream_passes_every_event_and_is_counted(served: Any, script: str) -> None:
    events = list(ask(served.url, script, stream=True))
    assert [event.type for event in events[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "w0 w1 w2 w3 w4 "
    assert (events[-1].type, events[-1].response.model) == ("response.completed", "acme")
    assert served.metric("slipstream_output_tokens_total") == 5
    assert served.metric("gen_ai_server_time_to_first_token_seconds_count", openai_api_type="responses") == 1


def test_decision_is_made_and_told_as_for_a_chat(served: Any) -> None:
    raw = client(served.url).responses.with_raw_response
    long = raw.create(model="acme", input=[{"role": "user", "content": SUMMARY * 4}])
    short = raw.create(model="acme", input="hi", max_output_tokens=2)
    logprobs = raw.create(model="acme", input=SUMMARY * 4, include=["message.output_text.logprobs"])
    assert long.headers["x-slipstream-arm"] == "speculative"
    assert long.headers["x-slipstream-class"] == "summarization/long"
    assert short.headers["x-slipstream-arm"] == "plain"
    assert logprobs.headers["x-slipstream-reason"] == "unsupported_parameter"
    assert len(long.headers["x-request-id"]) == 32


def test_route_explains_a_response_and_runs_nothing(served: Any, upstream: Any) -> None:
    answer = httpx.post(
        f"{served.url}/v1/route", json={"model": "acme", "input": SUMMARY * 4}, timeout=PATIENCE_S
    ).json()
    assert (answer["arm"], answer["class"]) == ("speculative", "summarization/long")
    assert upstream.requests == []


def test_stream_is_not_resumable_and_says_so(served: Any) -> None:
    with httpx.stream(
        "POST", f"{served.url}/v1/responses", json={"model": "acme", "input": "x", "stream": True}
    ) as got:
        assert got.headers["x-slipstream-resumable"] == "false"
        assert got.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("script", ["tokens=5 fail=2", "tokens=5 die=2", "tokens=2 early-end"])
def test_stream_that_breaks_ends_with_an_error_event_and_an_exception(served: Any, script: str) -> None:
    seen: list[Any] = []
    with pytest.raises(openai.APIError) as broken:
        seen.extend(ask(served.url, script, stream=True))
    assert seen[-1].type == "response.output_text.delta"
    assert broken.value.code == "stream_interrupted"
    body = httpx.post(f"{served.url}/v1/responses", json={"model": "acme", "input": script, "stream": True}).text
    last = body.strip().split("\n\n")[-1]
    assert last.startswith("event: error\n")
    error = json.loads(last.partition("data: ")[2])
    assert (error["type"], error["code"]) == ("error", "stream_interrupted")
    assert error["sequence_number"] == seen[-1].sequence_number + 1
    assert served.metric("slipstream_requests_total", status="upstream_failed") == 2


def test_server_that_dies_before_it_begins_is_as_one_that_never_answered(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    """A response is announced before anything is generated: the announcement waits, so that both servers are tried and
    the client gets a status instead of a stream that breaks."""
    urls = [openai_server().url, openai_server().url]
    served = gateway(manifest_text(urls))
    with pytest.raises(openai.APIStatusError) as failed:
        list(ask(served.url, "die=announced", stream=True))
    assert failed.value.status_code == 502
    assert served.metric("slipstream_upstream_errors_total") >= 2


def test_server_is_cancelled_when_the_client_leaves(served: Any, upstream: Any) -> None:
    stream = ask(served.url, "tokens=1000 gap=0.05", stream=True)
    next(iter(stream))
    stream.close()
    assert upstream.cancelled.wait(PATIENCE_S)
    eventually(lambda: served.metric("slipstream_requests_total", status="cancelled") == 1, "the record")
    assert served.metric("slipstream_requests_in_flight") == 0


def test_deadline_ends_a_stream_with_an_error_event(served: Any) -> None:
    with pytest.raises(openai.APIError) as late:
        list(ask(served.url, "tokens=1000 gap=0.05", stream=True, extra_headers={"x-request-timeout": "0.5"}))
    assert late.value.code == "deadline_exceeded"


def test_silent_server_is_given_up(gateway: Callable[..., Any], upstream: Any) -> None:
    deadlines = Deadlines(connect_s=5, first_chunk_s=0.3, between_chunks_s=5, total_s=20)
    served = gateway(manifest_text([upstream.url]), deadlines=deadlines)
    with pytest.raises(openai.APIStatusError) as silent:
        list(ask(served.url, "slow=5", stream=True))
    assert silent.value.status_code == 504


def test_refusals_of_the_server_reach_the_client_as_they_are(served: Any) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        ask(served.url, "status=404", previous_response_id="resp_1")
    assert refused.value.code == "scripted"


def test_state_is_refused_where_there_are_several_servers(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    served = gateway(manifest_text([openai_server().url], [openai_server().url]))
    for name, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1")):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(served.url, "tokens=1", extra_body={name: value})
        assert refused.value.param == name
        assert "several servers" in str(refused.value)


def test_background_and_stored_responses_are_refused(served: Any) -> None:
    with pytest.raises(openai.BadRequestError) as background:
        ask(served.url, "tokens=1", background=True)
    assert background.value.param == "background"
    responses = client(served.url).responses
    for call in (responses.retrieve, responses.delete, responses.cancel, responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match="The gateway stores no responses"):
            call("resp_up")


def test_bad_fields_get_400_with_their_name(served: Any) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        ask(served.url, "x", temperature=-7)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client(served.url).responses.create(model="nobody", input="x")
    assert unknown.value.code == "model_not_found"
