"""What is measured of an answer's content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.observation import Content, Measure
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.request.content import content_of
from slipstream_gateway.request.json_schema import fits
from slipstream_gateway.upstreams.base import Piece

SCHEMA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "size": {"type": ["integer", "null"]},
        "tags": {"items": {"enum": ["a"]}},
    },
}
STRUCTURED = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
TOOL = {"type": "function", "function": {"name": "get_tide", "parameters": {"type": "object", "required": ["port"]}}}
PROSE = "The harbour was deepened twice in the last ten years, and larger ships can now enter at every tide. " * 2


def measured(
    text: str = "", body: dict[str, Any] | None = None, *, calls: Any = (), reason: str = "stop", stream: bool = False
) -> Content:
    body = body or {}
    tools = [{"index": i, "function": {"name": name, "arguments": said}} for i, (name, said) in enumerate(calls)]
    message = {"content": text, "tool_calls": tools}
    answer = json.dumps({"choices": [{"delta" if stream else "message": message, "finish_reason": reason}]}).encode()
    pieces = [Piece(b"data: " + answer + b"\n\n"), Piece(b"data: [DONE]\n\n")] if stream else [Piece(answer)]
    request = GenerationRequest(
        endpoint=Endpoint.CHAT, model="m", stream=stream, features=frozenset(body), raw=json.dumps(body).encode()
    )
    found = content_of(request, pieces)
    assert found is not None
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "invalid"),
    [
        ('{"name": "x", "size": 3, "tags": ["a"]}', 0),
        ('{"name": "x", "size": null}', 0),
        ('{"name": "x", "size": "3"}', 100),
        ('{"name": "x", "tags": ["b"]}', 100),
        ('{"size": 3}', 100),
        ('{"name": "x", "more": 1}', 100),
        ('{"name": "x"', 100),
        ("", 100),
    ],
)
def test_an_answer_is_invalid_if_it_does_not_fit_the_schema(text: str, invalid: int, stream: bool) -> None:
    assert measured(text, STRUCTURED, stream=stream)[Measure.INVALID] == (invalid,)


@pytest.mark.parametrize(
    ("calls", "invalid"),
    [
        ([("get_tide", '{"port": "north"}')], 0),
        ([], 0),
        ([("get_tide", "{}")], 100),
        ([("get_tide", '{"port": ')], 100),
        ([("get_weather", '{"port": "north"}')], 100),
        ([("get_tide", '{"port": "north"}'), ("get_weather", "{}")], 100),
    ],
)
def test_a_tool_call_is_invalid_if_the_request_does_not_declare_it(calls: Any, invalid: int) -> None:
    found = measured("", {"tools": [TOOL]}, calls=calls)
    assert found[Measure.INVALID] == (invalid,)
    assert sum(found[Measure.TOOLS]) == (100 if calls and calls[0][0] == "get_tide" else 0)


@pytest.mark.parametrize(
    ("text", "reason", "refused"),
    [
        ("I'm sorry, but I can't help with that.", "stop", 100),
        ("Es tut mir leid, aber dabei kann ich nicht helfen.", "stop", 100),
        ("", "content_filter", 100),
        ("Hawaii cannot be reached by train.", "stop", 0),
        (PROSE + " I can't say more.", "stop", 0),
    ],
)
def test_refusals(text: str, reason: str, refused: int) -> None:
    assert measured(text, reason=reason)[Measure.REFUSED] == (refused,)


def test_a_text_that_repeats_itself_is_told_from_prose() -> None:
    assert measured("very " * 200)[Measure.REPEATED][0] > 90
    assert measured(PROSE[: len(PROSE) // 2])[Measure.REPEATED][0] < 30


def test_no_letters_are_counted_of_a_text_that_they_would_give_away() -> None:
    assert Measure.LETTERS not in measured("positive")
    assert Measure.LETTERS in measured(PROSE)
    russian, chinese = measured("Корабль стоит в гавани. " * 3), measured("港口里停着一艘船。" * 8)
    assert russian[Measure.LETTERS] != chinese[Measure.LETTERS]


@given(text=st.text(max_size=300), tools=st.booleans())
def test_shares_are_percentages_of_one_whole(text: str, tools: bool) -> None:
    found = measured(text, {"tools": [TOOL]} if tools else STRUCTURED)
    for shares in found.values():
        assert all(0 <= share <= 100 for share in shares)
        assert sum(shares) <= 100 + len(shares) / 2


def test_an_answer_in_another_form_is_not_measured() -> None:
    request = GenerationRequest(endpoint=Endpoint.CHAT, model="m")
    assert content_of(request, [Piece(b"no json")]) is None
    assert content_of(request, []) is None


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSONS, schema=JSONS)
def test_no_schema_of_a_client_breaks_the_check(value: Any, schema: Any) -> None:
    assert fits(value, {}) is True
    assert fits(value, schema) in (True, False)
    assert fits(value, {"type": schema, "enum": schema, "required": schema, "properties": schema, "items": schema}) in (
        True,
        False,
    )


def test_a_large_schema_costs_little() -> None:
    schema = {"items": {"enum": list(range(100_000))}}
    assert fits([200_000] * 100_000, schema) in (True, False)
    assert fits([1.0, True], {"items": {"type": "integer"}}) is False
    assert fits([1.0, 2], {"items": {"type": "integer"}}) is True
