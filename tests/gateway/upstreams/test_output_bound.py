"""The most tokens that an answer can have: no less than it has, whatever its form and however it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.request.journal import Journal
from slipstream_gateway.upstreams.base import Committed, Job, Piece, Usage, joined
from slipstream_gateway.upstreams.openai_reading import ChatReader
from slipstream_gateway.upstreams.openai_wire import read_body_usage, take_usage
from slipstream_gateway.upstreams.output_bound import most_tokens_of_answer, most_tokens_of_delta, most_tokens_of_events
from slipstream_gateway.upstreams.responses_wire import ResponsesReader, read_response_usage

REQUEST = GenerationRequest(endpoint=Endpoint.CHAT, model="m", stream=True)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


def event(*choices: dict[str, Any], end: bytes = b"\n\n", **more: Any) -> bytes:
    return b"data: " + json.dumps({"id": "x", "choices": list(choices), **more}).encode() + end


def delta(text: str, **more: Any) -> dict[str, Any]:
    return {"index": 0, "delta": {"content": text}, **more}


def read(*blocks: bytes, committed: Committed | None = None, choices: int = 1) -> Usage:
    """What a reader says of a stream of `blocks`."""
    request = GenerationRequest(endpoint=Endpoint.CHAT, model="m", stream=True, choices=choices)
    usage = Usage(exact=False, most_output_tokens=committed.most_output_tokens if committed else 0)
    reader = ChatReader(Job(request=request, model="m", draft_length=0, request_id="r", committed=committed), usage)
    for block in blocks:
        reader.read(block)
    return usage


@given(st.lists(TEXT, max_size=6), st.just(b"\n\n"), st.booleans())
def test_every_byte_of_text_may_be_a_token(texts: list[str], end: bytes, one_block: bool) -> None:
    events = [event(delta(text), end=end) for text in texts]
    usage = read(b"".join(events)) if one_block else read(*events)
    assert usage.most_output_tokens == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"text": "abc"}, 3),
        ({"delta": {"content": "né"}}, 3),
        ({"delta": {"reasoning_content": "abc", "reasoning": "abc"}}, 3),
        ({"delta": {"refusal": "abc"}}, 3),
        ({"delta": {"role": "assistant", "content": ""}}, 0),
        ({"delta": {"tool_calls": [{"index": 0, "id": "call", "function": {"name": "f", "arguments": "{}"}}]}}, 3),
        ({"message": {"role": "assistant", "content": "abc", "tool_calls": None}}, 3),
        ({"delta": {"content": "abcdef"}, "token_ids": [5, 6]}, 2),
        ({"delta": {"content": "abcdef"}, "logprobs": {"content": [{"token": "a"}, {"token": "b"}]}}, 2),
        ({"delta": {"content": "abcdef"}, "logprobs": {"content": [{"top_logprobs": [{"token": "a"}] * 9}]}}, 1),
        ({"delta": {"content": "abcdef"}, "logprobs": {"content": []}}, 6),
        ({"delta": {"content": "abcdef"}, "logprobs": None, "token_ids": None}, 6),
        ({"text": "abcdef", "logprobs": {"tokens": ["a", "b", "c"], "token_logprobs": [0, 0, 0]}}, 3),
        ({"delta": {}, "finish_reason": "stop"}, 0),
        ({}, 0),
    ],
)
def test_ids_and_log_probabilities_count_before_bytes(choice: dict[str, Any], tokens: int) -> None:
    assert most_tokens_of_events(event(choice)) == tokens
    assert most_tokens_of_answer(json.dumps({"choices": [choice, choice]}).encode()) == 2 * tokens


@pytest.mark.parametrize(
    "data", [b"data: [DONE]\n\n", b": ping\n\n", b'data: {"error": {"message": "x"}}\n\n', b"data:\n\n"]
)
def test_what_no_model_wrote_is_no_token(data: bytes) -> None:
    assert most_tokens_of_events(data) == 0


def test_event_that_cannot_be_read_counts_with_all_its_bytes() -> None:
    data = b'{"choices": [{"delta": {"content": 5}}]}'
    assert most_tokens_of_events(b"data: " + data + b"\n\n") == len(data)


def test_usage_of_the_server_replaces_the_bound_and_what_comes_after_is_added() -> None:
    told = event(delta("abcdef"), usage={"prompt_tokens": 5, "completion_tokens": 2})
    assert read(told).most_output_tokens == 2
    assert read(told, event(delta("xyz"))).most_output_tokens == 5
    assert read(told, event(delta("xyz")), event(usage={"prompt_tokens": 5, "completion_tokens": 3})) == Usage(
        prompt_tokens=5, output_tokens=3, most_output_tokens=3
    )


def test_usage_beside_one_of_several_choices_is_not_that_of_all() -> None:
    """As vLLM's `continuous_usage_stats` are."""
    own = event(delta("abc"), usage={"prompt_tokens": 5, "completion_tokens": 1})
    usage = read(own, own, choices=2)
    assert (usage.most_output_tokens, usage.exact) == (6, False)
    whole = Usage(exact=False)
    take_usage(event(usage={"prompt_tokens": 5, "completion_tokens": 4}), whole, keep=False, choices=2)
    assert (whole.output_tokens, whole.exact) == (4, True)


def test_bound_of_a_stream_that_goes_on_elsewhere_is_of_both_parts() -> None:
    first = event(delta("abcdef"))
    before = read(first)
    journal = Journal(REQUEST, by_text=True, by_tokens=False)
    journal.add(Piece(first))
    committed = journal.committed(before)
    assert committed is not None
    assert committed.most_output_tokens == 6
    assert joined(before, read(event(delta("xyz")), committed=committed)).most_output_tokens == 9
    end = event(usage={"prompt_tokens": 5, "completion_tokens": 2})
    assert joined(before, read(event(delta("xyz")), end, committed=committed)).most_output_tokens == 8


def test_a_stream_goes_on_after_as_many_tokens_as_it_told_the_ids_of() -> None:
    """An event may hold several: `max_tokens` of the rest is what is left of the answer's."""
    first = event(delta("abcdef"))
    journal = Journal(REQUEST, by_text=True, by_tokens=False)
    journal.add(Piece(first, token_ids=(7, 8, 9)))
    committed = journal.committed(read(first))
    assert committed is not None
    assert (committed.output_tokens, committed.text, committed.token_ids) == (3, "abcdef", ())


@pytest.mark.parametrize("by_text", [True, False])
def test_a_stream_that_goes_on_by_its_tokens_has_all_of_them(by_text: bool) -> None:
    journal = Journal(REQUEST, by_text=by_text, by_tokens=True)
    journal.add(Piece(event(delta("ab")), token_ids=(7,)))
    journal.add(Piece(event(delta("cd")), token_ids=(8, 9)))
    committed = journal.committed(read(event(delta("ab"))))
    assert committed is not None
    assert (committed.output_tokens, committed.token_ids) == (3, (7, 8, 9))
    assert committed.text == ("abcd" if by_text else "")


def test_whole_answers_without_a_usage_are_bounded_by_their_text() -> None:
    body = json.dumps({"choices": [{"message": {"content": "abc"}}, {"message": {"content": "de"}}]}).encode()
    assert read_body_usage(body).most_output_tokens == 5
    output = [{"type": "message", "content": [{"type": "output_text", "text": "abc"}]}]
    assert 3 <= read_response_usage(json.dumps({"output": output}).encode()).most_output_tokens < 100


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({"delta": "né"}, 3), ({"delta": "abcdef", "logprobs": [{"token": "a"}, {"token": "b"}]}, 2), ({"delta": ""}, 0)],
)
def test_deltas_of_a_response_count_alike(fields: dict[str, Any], tokens: int) -> None:
    data = json.dumps({"type": "response.output_text.delta", **fields}).encode()
    assert most_tokens_of_delta(data) == tokens
    usage = Usage(exact=False)
    reader = ResponsesReader(usage)
    reader.read(b"event: x\ndata: " + data + b"\n\n" + b'data: {"type": "response.output_text.done"}\n\n')
    assert usage.most_output_tokens == tokens
