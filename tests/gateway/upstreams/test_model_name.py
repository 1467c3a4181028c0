"""The public model name: of the answer itself, wherever it stands, and of nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_gateway.upstreams.model_name import ModelName

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["public", "up", "/models/up", 'a "quoted" \\name', "ü"])
OBJECTS = st.lists(st.tuples(st.text(), VALUES), max_size=4)


@st.composite
def objects(draw: st.DrawFn) -> dict[str, object]:
    """A JSON object with a model name, perhaps behind nested values that have one too."""
    members = [*draw(OBJECTS), ("nested", {"model": "up"}), ("model", draw(NAMES))]
    return dict(draw(st.permutations(members)))


@given(objects(), st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]), NAMES)
def test_only_the_models_name_changes(value: dict[str, object], separators: tuple[str, str], public: str) -> None:
    body = json.dumps(value, separators=separators).encode()
    expected = {**value, "model": public}
    assert json.loads(ModelName(public).of_body(body)) == expected
    block = b"data: %s\n\nevent: x\ndata:%s\n\ndata: [DONE]\n\n" % (body, body)
    names = ModelName(public)
    for _ in range(2):  # the second block meets what the first has taught
        first, second, done, rest = names.of_events(block).split(b"\n\n")
        assert json.loads(first.removeprefix(b"data:")) == expected
        assert json.loads(second.removeprefix(b"event: x\ndata:")) == expected
        assert (done, rest) == (b"data: [DONE]", b"")


@given(objects(), NAMES)
def test_a_response_has_its_name_in_the_field_response(value: dict[str, object], public: str) -> None:
    event = {"type": "response.created", "response": value, "model": "kept"}
    block = b"event: response.created\ndata: " + json.dumps(event).encode() + b"\n\n"
    changed = ModelName(public, in_response=True).of_events(block)
    expected = {**event, "response": {**value, "model": public}}
    assert json.loads(changed.removeprefix(b"event: response.created\ndata: ")) == expected


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices": [{"text": "\\"model\\": \\"up\\""}]}',
        b'{"choices": [{"model": "up"}]}',
        b'{"model": "up", broken',
        b"[]",
        b"",
    ],
)
def test_other_bytes_stay(data: bytes) -> None:
    if b"broken" not in data:
        assert ModelName("public").of_body(data) == data
        block = b": a comment\n\ndata: " + data + b"\n\n"
        assert ModelName("public").of_events(block) == block


def test_an_answer_keeps_its_form() -> None:
    body = b'{ "id": "c", "created": 1, "model" : "up", "choices": [ ], "metadata": {"model": "up"} }'
    assert ModelName("public").of_body(body) == body.replace(b'"up"', b'"public"', 1)


@pytest.mark.parametrize("filler", [b" ", b"\\\\", b'\\"', b"1", b'"a":1,', b'"a" : "b" , '])
def test_the_time_is_linear_whatever_a_server_sends(filler: bytes) -> None:
    """With backtracking, a megabyte would take hours."""
    for start in (b'{"a":', b'{"a":"', b'{"model":', b'{"model":"', b"{"):
        body = start + filler * (1_000_000 // len(filler))
        assert ModelName("public").of_body(body + b'"model"').startswith(start)
