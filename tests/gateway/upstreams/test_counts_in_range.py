"""Numbers of an upstream that cannot be: below 0, or larger than any answer. They are read as no number at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slipstream_gateway.upstreams.base import Usage
from slipstream_gateway.upstreams.engine_wire import read_counts
from slipstream_gateway.upstreams.openai_continuation import read_forwarded
from slipstream_gateway.upstreams.openai_wire import read_body_usage, take_usage
from slipstream_gateway.upstreams.responses_wire import ResponsesReader, read_response_usage

IMPOSSIBLE = (-1, 2**31, 10**400, -(10**400), 1.5, "7")
NAMES = ("negative", "above 31 bits", "401 digits", "negative, 401 digits", "fraction", "text")
TOLD = {"prompt_tokens": 5, "completion_tokens": 11}
DRAFTS = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 3, "num_spec_steps": 2}


def bad_usages(value: Any) -> list[dict[str, Any]]:
    return [
        {**TOLD, "prompt_tokens": value},
        {**TOLD, "completion_tokens": value},
        {**TOLD, "completion_tokens_details": {"accepted_prediction_tokens": value}},
        {**TOLD, "completion_tokens_details": {"rejected_prediction_tokens": value}},
        {**TOLD, "slipstream": {"target_steps": value}},
        {**TOLD, "slipstream": {"rejected_at": [0, value]}},
    ]


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=NAMES)
def test_usage_that_cannot_be_is_none_and_its_event_is_for_those_who_asked(value: Any) -> None:
    for wire in bad_usages(value):
        assert read_body_usage(json.dumps({"choices": [{}], "usage": wire}).encode()) == Usage(exact=False)
        streamed = Usage(exact=False)
        event = b"data: " + json.dumps({"choices": [], "usage": wire}).encode() + b"\n\n"
        assert take_usage(event, streamed, keep=False) == b""
        assert take_usage(event, streamed, keep=True) == event
        assert streamed == Usage(exact=False)


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=NAMES)
@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_usage_of_a_response_that_cannot_be_is_none_and_its_end_is_still_seen(name: str, value: Any) -> None:
    response = {"usage": {"input_tokens": 5, "output_tokens": 11, name: value}}
    assert read_response_usage(json.dumps(response).encode()) == Usage(exact=False, counted=False)
    for kind, ends in (("completed", (True, False)), ("failed", (False, True))):
        usage = Usage(exact=False)
        reader = ResponsesReader(usage)
        reader.read(b"data: " + json.dumps({"type": f"response.{kind}", "response": response}).encode() + b"\n\n")
        assert (reader.done, reader.failed) == ends
        assert not usage.exact


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=NAMES)
def test_counts_of_drafts_that_cannot_be_are_none(value: Any) -> None:
    lists = ("acceptance_histogram", "per_step_accepted", "per_step_drafted")
    for bad in (*({name: value} for name in DRAFTS), *({name: [0, value]} for name in lists)):
        body = {"metrics": {"speculative_decoding": {**DRAFTS, **bad}}}
        assert read_counts(json.dumps(body).encode()) is None, bad


def test_step_with_a_draft_longer_than_any_takes_no_memory() -> None:
    counts = {**DRAFTS, "per_step_accepted": [0], "per_step_drafted": [2**31 - 1]}
    assert read_counts(json.dumps({"metrics": {"speculative_decoding": counts}}).encode()) is None


@pytest.mark.parametrize("value", ["-1", "-1e-9", "100001", '"7"', "true", "[1]", "null", "{}"])
def test_engine_time_that_cannot_be_is_none_and_the_counts_beside_it_stay(value: str) -> None:
    wire = (
        b'{"choices": [], "usage": {"completion_tokens": 11, "slipstream": {"target_steps": 3, "engine_seconds": %b}}}'
    )
    usage = read_body_usage(wire % value.encode())
    assert usage.engine_s is None
    assert (usage.output_tokens, usage.steps) == (11, 3)


@pytest.mark.parametrize("created", [-1, 10**400], ids=["negative", "401 digits"])
def test_stream_from_before_all_time_does_not_go_on_elsewhere(created: int) -> None:
    event = {"id": "x", "created": created, "choices": [{"delta": {"content": "a"}}]}
    assert read_forwarded([b"data: " + json.dumps(event).encode() + b"\n\n"], Usage(exact=False)) is None
