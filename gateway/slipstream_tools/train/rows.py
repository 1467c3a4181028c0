"""Reads labelled requests, one JSON object per line; an invalid line is reported and skipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from slipstream_core.errors import CommandError, shorten
from slipstream_core.types import Endpoint, GenerationRequest, Message, TaskType
from slipstream_gateway.decide.classify.model import TASKS

_RARE_SHARE = 0.12  # share of an answer's words above which it counts as rare
_NO_SOURCE = "unnamed"
OWN_KINDS = ("none", "llm_median")  # lengths from a deployment
MODEL_KINDS = (*OWN_KINDS, "llm_single")  # lengths of models' answers


class Row(NamedTuple):
    """One request and its labels; None if unknown.

    `alternatives` are other acceptable tasks. `length_kind` is the origin of `tokens`: lengths of human answers and of
    models' answers are not on one scale. `speculate` is whether speculation should pay.
    """

    request: GenerationRequest
    source: str
    task: TaskType | None = None
    alternatives: frozenset[TaskType] = frozenset()
    tokens: int | None = None
    length_kind: str = "none"
    rare: bool | None = None
    rare_share: float | None = None
    speculate: bool | None = None


class Reading(NamedTuple):
    """The rows of a file, and one line per unusable row."""

    rows: list[Row]
    problems: list[str]


def read_rows(path: Path) -> Reading:
    """The rows of `path`, JSON Lines, gzipped or not. Raises CommandError if it cannot be read or has no rows."""
    rows: list[Row] = []
    problems: list[str] = []
    try:
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                try:
                    rows.append(_row(line))
                except ValueError as error:
                    problems.append(f"line {number}: {error}")
    except (OSError, EOFError, zlib.error) as error:
        raise CommandError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}", exit_code=2
        ) from error
    if not rows:
        why = f"; {problems[0]}" if problems else ""
        raise CommandError(f"{path}: no usable row{why}", exit_code=2)
    return Reading(rows, problems)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if zipped else path.open("rb") as stream:
        yield from stream


def _row(line: bytes) -> Row:
    """Raises ValueError with the invalid field and value."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {shorten(str(value))}")
    meta = value.get("meta") or {}
    if not isinstance(meta, dict):
        raise ValueError(f"meta is not an object: {shorten(str(meta))}")
    tokens = _number(value, "response_tokens_est")
    share = _number(meta, "resp_rare_frac")
    rare = meta.get("rare_answer")
    route = meta.get("route")
    if route not in (None, "spec", "plain"):
        raise ValueError(f"meta.route must be 'spec' or 'plain', got {shorten(repr(route))}")
    if rare not in (None, 0, 1):
        raise ValueError(f"meta.rare_answer must be 0 or 1, got {shorten(repr(rare))}")
    task = value.get("task")
    return Row(
        request=GenerationRequest(endpoint=Endpoint.CHAT, model="", messages=_messages(value.get("messages"))),
        source=str(value.get("source") or _NO_SOURCE),
        task=None if task is None else _task(task),
        alternatives=_alternatives(meta.get("task_alt")),
        tokens=None if tokens is None else int(tokens),
        length_kind=str(meta.get("len_kind") or "none"),
        rare=bool(rare) if rare is not None else (None if share is None else share >= _RARE_SHARE),
        rare_share=share,
        speculate=None if route is None else route == "spec",
    )


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages is not a list of messages: {shorten(repr(value))}")
    return tuple(map(_message, value))


def _message(value: object) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise ValueError(f"messages has an item that is not a message: {shorten(repr(value))}")
    content = value.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise ValueError(f"messages has a content that is not a text: {shorten(repr(content))}")
    return Message(role=value["role"], content=content)


def _task(name: object) -> TaskType:
    for task in TASKS:
        if task == name:
            return task
    raise ValueError(f"task must be one of {', '.join(TASKS)}, got {shorten(repr(name))}")


def _alternatives(names: object) -> frozenset[TaskType]:
    if names is None:
        return frozenset()
    if not isinstance(names, list):
        raise ValueError(f"meta.task_alt is not a list of tasks: {shorten(repr(names))}")
    return frozenset(map(_task, names))


def _number(value: dict[str, Any], name: str) -> float | None:
    number = value.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9:
        raise ValueError(f"{name} must be a number of at least 0, got {shorten(repr(number))}")
    return float(number)
