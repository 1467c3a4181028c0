"""Bench files: both forms of a line, and what becomes of lines that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from slipstream_core.errors import CommandError
from slipstream_tools.bench.requests import embedded_requests, is_embedded, read_requests

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


def test_a_line_is_a_bare_body_or_wraps_one(bench_file: Callable[..., Path]) -> None:
    extras = {"class": "greeting", "reference": "hello", "check": "contains", "at_s": 1.5}
    file = read_requests(bench_file({**BODY, **extras}, {"request": BODY, **extras}, BODY))
    assert [request.body for request in file.requests] == [BODY] * 3
    assert [request.request_class for request in file.requests] == ["greeting", "greeting", None]
    assert [list(request.checks) for request in file.requests] == [["contains"], ["contains"], []]
    assert file.problems == ()


def test_lines_that_cannot_be_used_are_told_by_number_and_skipped(bench_file: Callable[..., Path]) -> None:
    file = read_requests(
        bench_file(
            BODY,
            '{"model": "m", "messages": [',
            "[1, 2]",
            {"model": "m"},
            {"request": "text"},
            "",
            {**BODY, "class": 7},
            {**BODY, "check": "fields", "reference": "no object"},
            {**BODY, "check": "json-schema", "reference": {"type": 3}},
            {"prompt": "Hi"},
        )
    )
    assert [request.line for request in file.requests] == [1, 10]
    assert [request.index for request in file.requests] == [0, 1]
    starts = ["line 2: not JSON: ", "line 3: must be a JSON object", "line 4: the request body has neither"]
    starts += ["line 5: 'request' must be an OpenAI request body", "line 7: 'class' must be a text, got 7"]
    starts += ["line 8: check 'fields' needs a JSON object", "line 9: check 'json-schema': the reference is no valid"]
    assert [problem.startswith(start) for problem, start in zip(file.problems, starts, strict=True)] == [True] * 7


def test_a_question_of_spec_bench_asks_its_first_turn(bench_file: Callable[..., Path]) -> None:
    question = {"question_id": 82, "category": "writing", "turns": ["Draft an email.", "Now shorten it."]}
    file = read_requests(bench_file(question, {**question, "turns": []}, {**question, "category": 7}))
    (request,) = file.requests
    assert request.request_class == "writing"
    assert request.body == {
        "messages": [{"role": "user", "content": "Draft an email."}],
        "max_tokens": 256,
        "temperature": 0,
    }
    assert file.problems == (
        "line 2: 'turns' must be a list of texts, got []",
        "line 3: 'class' must be a text, got 7",
    )


def test_the_digest_tells_requests_apart_and_not_their_formatting(bench_file: Callable[..., Path]) -> None:
    first = read_requests(bench_file({"prompt": "a", "class": "x"})).digest
    assert read_requests(bench_file('{"class":"x",   "prompt":"a"}', "broken")).digest == first
    assert read_requests(bench_file({"prompt": "a", "class": "y"})).digest != first


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "\\ud800"}', "line 2: cannot be encoded as a request: "),
        ('{"prompt": "a", "class": "\\ud800"}', "line 2: cannot be encoded as a request: "),
        (f'{{"prompt": "a", "metadata": {"[" * 201}1{"]" * 201}}}', "line 2: nested deeper than 200 levels"),
        ("[" * 100_000, "line 2: not JSON: "),
    ],
)
def test_what_cannot_be_sent_is_a_bad_line(bench_file: Callable[..., Path], line: str, problem: str) -> None:
    file = read_requests(bench_file(BODY, line, BODY))
    assert [request.index for request in file.requests] == [0, 1]
    assert [told.startswith(problem) for told in file.problems] == [True]


@pytest.mark.parametrize("lines", [[""], ["nonsense", "{}"]])
def test_a_file_without_a_usable_line_is_an_error(bench_file: Callable[..., Path], lines: list[str]) -> None:
    with pytest.raises(CommandError, match="no usable request"):
        read_requests(bench_file(*lines))


@pytest.mark.integration
def test_the_shipped_workload_is_seeded_and_has_classes_and_checks() -> None:
    first, again = embedded_requests("embedded:8"), embedded_requests("embedded:8:0")
    assert first.digest == again.digest
    assert len(first.requests) == 8
    assert all(request.request_class and request.checks for request in first.requests)
    assert first.problems == ()


@pytest.mark.parametrize(
    "text", ["embedded", "embedded:", "embedded:0", "embedded:5:x", "embedded:1:2:3", "embedded:²"]
)
def test_the_shipped_workload_is_named_exactly(text: str) -> None:
    assert is_embedded(text)
    with pytest.raises(CommandError, match="embedded:COUNT"):
        embedded_requests(text)
