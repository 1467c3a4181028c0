"""What a model wrote, read out of OpenAI's wire form: the same whether it was streamed or not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_gateway.upstreams.openai_answer import AnswerReader

CALLS = [("weather", '{"city": "Brno"}'), ("time", "{}")]


def body(**message: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()


def event(*, finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], "usage": None}).encode() + b"\n\n"


def read(*blocks: bytes, stream: bool) -> AnswerReader:
    reader = AnswerReader(stream=stream)
    for block in blocks:
        reader.feed(block)
    return reader


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(st.text(min_size=1, max_size=6), max_size=8), joined=st.booleans())
def test_text_is_that_of_the_deltas_however_they_come(parts: list[str], joined: bool) -> None:
    blocks = [event(role="assistant", content=""), *(event(content=part) for part in parts), event(finish="stop")]
    blocks += [b': ping\n\ndata: {"choices": [], "usage": {"completion_tokens": 1}}\n\n', b"data: [DONE]\n\n"]
    streamed = read(*([b"".join(blocks)] if joined else blocks), stream=True)
    whole = read(body(role="assistant", content="".join(parts)), stream=False)
    assert streamed.text == whole.text == "".join(parts)
    assert streamed.finish_reason == whole.finish_reason == "stop"


def test_tool_calls_and_reasoning_are_part_of_the_answer_and_ids_are_not() -> None:
    calls = [{"id": f"a{i}", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(CALLS)]
    whole = read(body(content=None, reasoning_content="hm", tool_calls=calls), stream=False)
    deltas = [event(reasoning_content="h"), event(reasoning_content="m")]
    for index, (name, arguments) in enumerate(CALLS):
        deltas.append(event(tool_calls=[{"index": index, "id": f"b{index}", "function": {"name": name}}]))
        deltas += [event(tool_calls=[{"index": index, "function": {"arguments": char}}]) for char in arguments]
    streamed = read(*deltas, event(finish="stop"), stream=True)
    assert streamed.text == whole.text
    for part in ("hm", "weather", '{"city": "Brno"}', "time"):
        assert part in whole.text


def test_completions_have_their_text_elsewhere() -> None:
    streamed = read(b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"text": "b"}]}\n\n', stream=True)
    assert streamed.text == read(b'{"choices": [{"text": "ab"}]}', stream=False).text == "ab"


@pytest.mark.parametrize(
    ("block", "stream"),
    [
        (b'data: {"error": {"message": "overloaded"}}\n\n', True),
        (b"data: {\n\n", True),
        (b'{"choices": [{"message": {"content": [1]}}]}', False),
        (b"[]", False),
        (b"\xff", False),
    ],
)
def test_what_is_no_answer_is_refused(block: bytes, stream: bool) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(block, stream=stream)


def test_an_error_of_null_is_none() -> None:
    assert read(b'{"error": null, "choices": [{"text": "a"}]}', stream=False).text == "a"
