"""openapi.json is true: its bounds are the parser's, and a running gateway's answers have its shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from slipstream_core.errors import InvalidRequest, RequestError
from slipstream_gateway.api.parse import parse_chat_request, parse_completion_request
from slipstream_gateway.api.parse_responses import parse_responses_request

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "openapi.json").read_text(encoding="utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
CHAT = {"model": "acme", "messages": [{"role": "user", "content": "tokens=3"}]}
BAD: dict[str, list[Any]] = {
    "model": ["", None, 1],
    "messages": [[], None, "hello", [{"content": "x"}], [{"role": "nobody", "content": "x"}]],
    "max_tokens": [0, -1, 2**31, "1", 1.5],
    "max_completion_tokens": [0, 2**31],
    "temperature": [-0.1, "hot"],
    "top_p": [-0.1, 1.1],
    "top_k": [-2, 2**31],
    "seed": [2**63, -(2**63) - 1],
    "n": [0, 65_537],
    "stop": ["", [""]],
    "stream": ["yes", 1],
}
GOOD: dict[str, list[Any]] = {
    "max_tokens": [1, 3.0, 2**31 - 1, None],
    "temperature": [0, 2, 0.5, 100, None],
    "top_p": [0, 1],
    "top_k": [-1, 0, 2**31 - 1],
    "seed": [2**63 - 1, -(2**63), None],
    "n": [1, 8, 9, 65_536],
    "stop": ["x", ["a"] * 5, None],
    "user": ["somebody"],
}


def validator(name: str) -> jsonschema.Draft202012Validator:
    root = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema.Draft202012Validator(root)


def cases(fields: dict[str, list[Any]]) -> Iterator[Any]:
    for name, values in fields.items():
        yield from (pytest.param({**CHAT, name: value}, id=f"{name}={value!r:.20}") for value in values)


@pytest.mark.parametrize("body", list(cases(BAD)))
def test_what_the_document_forbids_the_parser_refuses(body: dict[str, Any]) -> None:
    assert not validator("ChatRequest").is_valid(body)
    with pytest.raises(InvalidRequest):
        parse_chat_request(json.dumps(body).encode())


@pytest.mark.parametrize("body", list(cases(GOOD)))
def test_what_the_document_allows_the_parser_takes(body: dict[str, Any]) -> None:
    validator("ChatRequest").validate(body)
    parse_chat_request(json.dumps(body).encode())


@pytest.mark.parametrize("prompt", ["", "x", [1, 2], ["a", "b"], [[1], [2]]])
def test_prompts_of_all_kinds(prompt: Any) -> None:
    body = {"model": "acme", "prompt": prompt}
    validator("TextRequest").validate(body)
    parse_completion_request(json.dumps(body).encode())


@pytest.mark.parametrize("prompt", [[], [1, "a"], [-1], [[]], None, 5])
def test_prompts_of_no_kind(prompt: Any) -> None:
    body = {"model": "acme", "prompt": prompt}
    assert not validator("TextRequest").is_valid(body)
    with pytest.raises(InvalidRequest):
        parse_completion_request(json.dumps(body).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "x"},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "max_output_tokens": 1},
        {"previous_response_id": "resp_1"},
        {"input": "x", "background": False, "text": {"format": {"type": "text"}}, "include": []},
    ],
)
def test_responses_that_the_document_allows(fields: dict[str, Any]) -> None:
    body = {"model": "acme", **fields}
    validator("ResponseRequest").validate(body)
    parse_responses_request(json.dumps(body).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input": []},
        {"input": 5},
        {"input": ["x"]},
        {"input": "x", "background": True},
        {"input": "x", "max_output_tokens": 0},
        {"input": "x", "max_output_tokens": 2**31},
        {"input": "x", "instructions": 5},
        {"input": "x", "include": "logprobs"},
        {"input": "x", "text": "json"},
        {"input": "x", "temperature": -3},
        {"input": "x", "model": ""},
    ],
)
def test_responses_that_the_document_forbids(fields: dict[str, Any]) -> None:
    body = {"model": "acme", **fields}
    assert not validator("ResponseRequest").is_valid(body)
    with pytest.raises(RequestError):
        parse_responses_request(json.dumps(body).encode())


def test_every_reference_resolves_and_every_operation_has_its_own_name() -> None:
    names = {ref.rsplit("/", 1)[1] for ref in _references(DOCUMENT)}
    assert names <= SCHEMAS.keys()
    operations = [found["operationId"] for path in DOCUMENT["paths"].values() for found in _operations(path)]
    assert len(operations) == len(set(operations)) == 10
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def _operations(path: dict[str, Any]) -> Iterator[Any]:
    yield from (path[method] for method in ("get", "post") if method in path)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for below in value.values():
            yield from _references(below)
    elif isinstance(value, list):
        for below in value:
            yield from _references(below)
