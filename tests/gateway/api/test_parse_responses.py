"""Bodies of `/v1/responses` into requests: what is read, what is a feature, and what an error says."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.errors import InvalidRequest, RequestError, UnsupportedParameter
from slipstream_core.types import RESPONSES_FEATURE, Endpoint, Message
from slipstream_gateway.api.parse import parse_request
from slipstream_gateway.api.parse_responses import parse_responses_request


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hello", **fields}).encode()


def message(content: Any, role: Any = "user") -> bytes:
    return body(input=[{"role": role, "content": content}])


@pytest.mark.parametrize(
    ("raw", "param", "part"),
    [
        (b"[]", None, "must be a JSON object"),
        (b'{"model": "m"}', "input", "Missing"),
        (b'{"input": "x"}', "model", "Missing"),
        (body(input=[]), "input", "got []"),
        (body(input=5), "input", "got 5"),
        (body(input=["x"]), "input[0]", 'got "x"'),
        (body(input=[{"content": "x"}]), "input[0].role", "got null"),
        (message("x", role="tool"), "input[0].role", 'got "tool"'),
        (message(None), "input[0].content", "got null"),
        (message(["x"]), "input[0].content[0]", 'got "x"'),
        (message([{"text": "x"}]), "input[0].content[0]", "with a type"),
        (message([{"type": "input_text"}]), "input[0].content[0].text", "got null"),
        (message([{"type": "input_text", "text": 5}]), "input[0].content[0].text", "got 5"),
        (body(instructions=5), "instructions", "got 5"),
        (body(max_output_tokens=0), "max_output_tokens", "got 0"),
        (body(max_output_tokens=2**31), "max_output_tokens", "got 2147483648"),
        (body(temperature=-7), "temperature", "got -7"),
        (body(top_p=-1), "top_p", "got -1"),
        (body(stream="yes"), "stream", 'got "yes"'),
        (body(text=[]), "text", "got []"),
        (body(include="x"), "include", 'got "x"'),
        (body(background="x"), "background", 'got "x"'),
        (body(seed=2**63), "seed", "9223372036854775808"),
        (body(stop=[""]), "stop", "empty"),
    ],
)
def test_bad_body_names_the_field_and_the_value(raw: bytes, param: str | None, part: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_responses_request(raw)
    assert caught.value.param == param
    assert part in str(caught.value)
    assert len(str(caught.value)) < 300


def test_background_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedParameter, match="'background'") as caught:
        parse_responses_request(body(background=True))
    assert caught.value.param == "background"
    assert parse_responses_request(body(background=False)).features == {RESPONSES_FEATURE}


def test_instructions_and_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]},
    ]
    request = parse_responses_request(body(input=items, instructions="system text", max_output_tokens=9))
    assert [(each.role, each.content) for each in request.messages] == [
        ("system", "system text"),
        ("developer", "be brief"),
        ("user", "a"),
        ("assistant", '{"a": 1}'),
        ("tool", "42"),
        ("assistant", ""),
        ("assistant", "b"),
        ("user", "cd"),
    ]
    assert (request.endpoint, request.max_tokens) == (Endpoint.RESPONSES, 9)
    assert request.features == {RESPONSES_FEATURE, "tools"}


SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("fields", "features"),
    [
        ({"store": True, "metadata": {"a": "b"}, "user": "u", "truncation": "disabled", "tools": []}, set()),
        ({"text": {"format": {"type": "text"}}, "include": [], "previous_response_id": None}, set()),
        ({"text": {"format": SCHEMA}}, {"text.format"}),
        ({"text": {"verbosity": "low"}}, {"text.verbosity"}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs", "top_logprobs"}),
        ({"include": ["reasoning.encrypted_content"]}, {"include.reasoning.encrypted_content"}),
        ({"tools": [{"type": "function", "name": "f"}], "tool_choice": "required"}, {"tools", "tool_choice"}),
        ({"reasoning": {"effort": "low"}, "truncation": "auto"}, {"reasoning", "truncation"}),
        ({"previous_response_id": "resp_1"}, {"previous_response_id"}),
        ({"logit_bias": {"1": 2}, "min_p": 0.1}, {"logit_bias", "min_p"}),
    ],
)
def test_what_asks_for_more_is_a_feature(fields: dict[str, Any], features: set[str]) -> None:
    request = parse_responses_request(body(**fields))
    assert request.features == features | {RESPONSES_FEATURE}
    assert request.structured_output is ("text.format" in features)


def test_other_parts_are_features_and_the_body_goes_on_as_it_came() -> None:
    parts = [{"type": "input_image", "image_url": "data:x"}, {"type": "input_text", "text": "what is it?"}]
    raw = message(parts)
    request = parse_responses_request(raw)
    assert request.features == {RESPONSES_FEATURE, "input_image"}
    assert request.messages == (Message(role="user", content="what is it?"),)
    assert json.loads(request.raw) == json.loads(raw)


@pytest.mark.parametrize("stored", ["prompt", "previous_response_id", "conversation"])
def test_input_may_be_missing_where_the_server_keeps_one(stored: str) -> None:
    request = parse_responses_request(json.dumps({"model": "m", stored: "x"}).encode())
    assert request.messages == ()


@pytest.mark.parametrize(
    ("fields", "endpoint"),
    [
        ({"input": "x"}, Endpoint.RESPONSES),
        ({"prompt": "x"}, Endpoint.COMPLETION),
        ({"messages": [{"role": "user", "content": "x"}]}, Endpoint.CHAT),
    ],
)
def test_a_body_says_which_endpoint_it_is_for(fields: dict[str, Any], endpoint: Endpoint) -> None:
    assert parse_request(json.dumps({"model": "m", **fields}).encode()).endpoint is endpoint


NAMES = ["model", "input", "instructions", "text", "include", "stream", "tools", "type", "role", "content", "output"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["message", "user", "input_text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "text"]), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6))
def test_no_body_raises_anything_but_a_request_error(fields: dict[str, Any]) -> None:
    with contextlib.suppress(RequestError):
        parse_responses_request(json.dumps(fields).encode())


IMAGE = {"type": "input_image", "image_url": "A" * 10_000}


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [IMAGE]},
        {"type": "function_call_output", "call_id": "x", "output": [IMAGE]},
        {"type": "computer_call_output", "output": {**IMAGE, "type": "computer_screenshot"}},
    ],
)
def test_media_count_by_their_number(item: dict[str, Any]) -> None:
    size = parse_responses_request(body(input=[item])).prompt_size
    assert size.media == 1
    assert size.text_bytes < 250
