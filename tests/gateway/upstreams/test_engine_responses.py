"""The plugin's counts in a response become the usage that chat completions have, in whole answers and in streams."""

from __future__ import annotations

import json
from typing import Any

from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.upstreams.base import Job, Usage
from slipstream_gateway.upstreams.engine_wire import EngineResponsesReader, client_body, drafting_body
from slipstream_gateway.upstreams.sse import event_data, split_events

from tests.gateway.scripted_responses import ResponseEvents, response
from tests.gateway.upstreams.test_engine_wire import COUNTS, USAGE

BODY = {"model": "public", "input": "Hi"}


def job(*, stream: bool) -> Job:
    raw = json.dumps({**BODY, "stream": stream}).encode()
    request = GenerationRequest(endpoint=Endpoint.RESPONSES, model="public", stream=stream, raw=raw)
    return Job(request=request, model="own", draft_length=4, request_id="r", request_class="code/long")


def counted(metrics: dict[str, Any]) -> dict[str, Any]:
    return {**response(BODY, "text", USAGE, "completed"), "metrics": metrics}


def test_a_response_carries_its_draft_length_and_is_not_asked_for_its_usage() -> None:
    body = json.loads(drafting_body(job(stream=True)))
    assert body["vllm_xargs"] == {"slipstream_draft_length": 4, "slipstream_class": "code/long"}
    assert "stream_options" not in body


def test_counts_at_the_end_of_a_stream_become_usage() -> None:
    usage, events = Usage(exact=False), ResponseEvents(BODY, b"\n\n")
    reader = EngineResponsesReader(job(stream=True), usage)
    before = b"".join([*events.start(), events.token('"speculative_decoding"')])
    end = json.dumps({"type": "response.completed", "response": counted({"speculative_decoding": COUNTS})})
    last = b"event: response.completed\ndata: " + end.encode() + b"\n\n"
    assert reader.read(before) == before
    [told] = split_events(reader.read(last))
    assert (usage.output_tokens, usage.drafted, usage.accepted, usage.steps) == (9, 16, 4, 4)
    assert told.startswith(b"event: response.completed\n")
    answer = json.loads(event_data(told))["response"]
    assert "metrics" not in answer
    assert answer["usage"]["output_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 12,
    }
    assert answer["usage"]["slipstream"]["draft_length"] == 4
    assert (reader.done, answer["status"]) == (True, "completed")


def test_other_metrics_of_the_server_stay() -> None:
    usage = Usage(drafted=16, accepted=4, steps=4)
    metrics = {"queue_time_ms": 1.5, "speculative_decoding": COUNTS}
    told = json.loads(client_body(json.dumps(counted(metrics)).encode(), usage, job(stream=False)))
    assert told["metrics"] == {"queue_time_ms": 1.5}
    assert told["usage"]["output_tokens"] == 9


def test_a_stream_without_counts_passes_as_it_came() -> None:
    usage, events = Usage(exact=False), ResponseEvents(BODY, b"\n\n")
    stream = b"".join([*events.start(), events.token("x"), events.close(USAGE)])
    assert EngineResponsesReader(job(stream=True), usage).read(stream) == stream
    assert (usage.output_tokens, usage.drafted) == (9, 0)


def test_a_response_says_whether_its_drafts_were_counted() -> None:
    usage, events = Usage(exact=False), ResponseEvents(BODY, b"\n\n")
    reader = EngineResponsesReader(job(stream=True), usage)
    reader.read(events.token("x"))
    assert not usage.counted
    end = json.dumps({"type": "response.completed", "response": counted({"speculative_decoding": COUNTS})})
    reader.read(b"data: " + end.encode() + b"\n\n")
    assert usage.counted
