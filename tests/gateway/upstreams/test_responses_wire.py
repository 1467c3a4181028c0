"""What is read from a stream of `/v1/responses`, whatever blocks its events come in."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_gateway.upstreams.base import Usage
from slipstream_gateway.upstreams.responses_wire import ResponsesReader, next_sequence_number, read_response_usage

from tests.gateway.scripted_responses import ResponseEvents

REQUEST = {"model": "acme", "input": "hi"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def whole(usage: dict[str, int] | None = USAGE) -> list[bytes]:
    events = ResponseEvents(REQUEST, b"\n\n")
    return [*events.start(), *(events.token(f"w{index} ") for index in range(3)), events.close(usage)]


@given(cuts=st.sets(st.integers(1, 6)))
def test_usage_begin_and_end_do_not_depend_on_the_blocks(cuts: set[int]) -> None:
    usage, events = Usage(exact=False), whole()
    reader = ResponsesReader(usage)
    borders = [0, *sorted(cuts), len(events)]
    passed = [reader.read(b"".join(events[one:two])) for one, two in pairwise(borders)]
    assert b"".join(passed) == b"".join(events)
    assert (reader.begun, reader.generating, reader.done, reader.failed) == (True, True, True, False)
    assert (usage.prompt_tokens, usage.output_tokens, usage.exact) == (7, 3, True)


def test_announcements_are_no_begin_and_an_item_is_no_token() -> None:
    reader = ResponsesReader(Usage(exact=False))
    created, in_progress, item, delta, *_ = whole()
    states = []
    for block in (created, in_progress, item, delta):
        reader.read(block)
        states.append((reader.begun, reader.generating))
    assert states == [(False, False), (False, False), (True, False), (True, True)]


def test_without_a_usage_the_deltas_count() -> None:
    usage = Usage(exact=False)
    ResponsesReader(usage).read(b"".join(whole(None)))
    assert (usage.prompt_tokens, usage.output_tokens, usage.exact) == (0, 3, False)


@pytest.mark.parametrize("kind", ["reasoning_text", "function_call_arguments", "refusal", "custom_tool_call_input"])
def test_every_kind_of_delta_is_generated_text(kind: str) -> None:
    reader = ResponsesReader(Usage())
    reader.read(event(f"response.{kind}.delta", delta="x"))
    assert reader.generating


def test_generated_text_ends_nothing() -> None:
    reader = ResponsesReader(Usage(exact=False))
    block = event("response.output_text.delta", delta='{"type": "response.completed", "error": {"code": 500}}')
    assert reader.read(block) == block
    assert (reader.done, reader.failed) == (False, False)


@pytest.mark.parametrize(
    "failure",
    [
        event("response.failed", response={"error": {"code": "server_error", "message": "x"}, "usage": None}),
        event("response.failed", response={}),
        event("error", code="server_error", message="x"),
        event("error", error={"type": "server_error", "message": "x"}),
        b'data: {"error": {"message": "x", "type": "InternalServerError", "code": 500}}\n\n',
    ],
)
def test_a_failure_of_the_server_is_left_out_and_told(failure: bytes) -> None:
    reader = ResponsesReader(Usage(exact=False))
    before = whole()[3]
    assert reader.read(before + failure + whole()[-1]) == before
    assert (reader.failed, reader.done) == (True, False)


@pytest.mark.parametrize(
    "answer",
    [
        event("response.incomplete", response={"usage": {"input_tokens": 1, "output_tokens": 2}}),
        event("response.failed", response={"error": {"type": "invalid_request_error", "message": "bad image"}}),
    ],
)
def test_an_end_that_the_request_has_caused_is_an_answer(answer: bytes) -> None:
    reader = ResponsesReader(Usage(exact=False))
    assert reader.read(answer) == answer
    assert (reader.failed, reader.done) == (False, True)


def test_a_body_without_usage_is_not_exact_and_other_json_is_refused() -> None:
    assert not read_response_usage(b'{"usage": null}').exact
    usage = read_response_usage(b'{"usage": {"input_tokens": 4, "output_tokens": 2}}')
    assert (usage.prompt_tokens, usage.output_tokens, usage.exact) == (4, 2, True)
    with pytest.raises(msgspec.DecodeError):
        read_response_usage(b"[]")


def test_the_number_of_the_next_event() -> None:
    assert next_sequence_number(b"") == 0
    assert next_sequence_number(b"".join(whole()[:4])) == 4
