"""Requests of a bench: a JSONL file with one OpenAI request body per line and an optional class, reference and check,
or with the questions of Spec-Bench; or the shipped workload, which a process of the embedded pair's own package makes:
the gateway never imports it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.errors import CommandError, named_os_errors, shorten

from slipstream_tools.bench.checks import Check, CheckError, make_checks

MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 200
"""Nesting levels of a line: far more than a request needs, far fewer than the recursion limit of encoders."""
QUESTION_TOKENS = 256
"""Longest answer to a question of Spec-Bench."""
_EXTRAS = ("class", "reference", "check", "at_s")


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One line that can be run. `index` counts the usable lines from 0, `line` all from 1. `body` is the
    OpenAI body alone; `request_class` is the class that the file names."""

    index: int
    line: int
    body: dict[str, Any]
    request_class: str | None
    checks: dict[str, Check]


class BenchFile(msgspec.Struct, frozen=True, kw_only=True):
    """All usable lines, the problems of the others (`line 7: …`), and a digest of what is used, checks included."""

    source: str
    requests: tuple[BenchRequest, ...]
    problems: tuple[str, ...]
    digest: str


class _BadLine(Exception):
    """Why one line is skipped."""


def read_requests(path: Path) -> BenchFile:
    """The requests of the JSONL file at `path`; unusable lines are skipped and listed in `problems`.

    Raises:
        CommandError: the file cannot be read, or has no usable line.
    """
    with named_os_errors(f"{path}: cannot be read", exit_code=2), path.open("rb") as lines:
        return parse_requests(lines, source=str(path))


def parse_requests(lines: Iterable[bytes], *, source: str) -> BenchFile:
    """The requests in `lines`. Raises `CommandError` where none is usable."""
    requests: list[BenchRequest] = []
    problems: list[str] = []
    digest = hashlib.sha256()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = _decode(line)
            request = _request(value, index=len(requests), line=number)
            canonical = json.dumps(value, sort_keys=True).encode()
        except (_BadLine, CheckError) as error:
            problems.append(f"line {number}: {error}")
        else:
            requests.append(request)
            digest.update(canonical + b"\n")
    if not requests:
        why = f"; {problems[0]}" if problems else ""
        raise CommandError(f"{source}: no usable request{why}", exit_code=2)
    return BenchFile(source=source, requests=tuple(requests), problems=tuple(problems), digest=digest.hexdigest()[:16])


def _decode(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise _BadLine(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"not JSON: {error}") from error
    if _depth(value) > MAX_DEPTH:
        raise _BadLine(f"nested deeper than {MAX_DEPTH} levels")
    if not isinstance(value, dict):
        raise _BadLine(f"must be a JSON object, got {shorten(json.dumps(value))}")
    return value


def _depth(value: object) -> int:
    """How many levels of arrays and objects `value` has, counted without recursion."""
    depth, level = -1, [value]
    while level:
        depth += 1
        nested = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [part for parts in nested for part in parts]
    return depth


def _request(value: Mapping[str, Any], *, index: int, line: int) -> BenchRequest:
    if value.keys() >= {"question_id", "category", "turns"}:
        value = _question(value["turns"], value["category"])
    body = value.get("request", value)
    if not isinstance(body, dict):
        raise _BadLine(f"'request' must be an OpenAI request body, got {shorten(json.dumps(body))}")
    if body is value:
        body = {name: field for name, field in value.items() if name not in _EXTRAS}
    if not ("messages" in body or "prompt" in body):
        raise _BadLine("the request body has neither 'messages' nor 'prompt'")
    request_class = value.get("class")
    if request_class is not None and not (isinstance(request_class, str) and request_class.strip()):
        raise _BadLine(f"'class' must be a text, got {shorten(json.dumps(request_class))}")
    try:
        msgspec.json.encode((body, request_class))
    except (ValueError, OverflowError) as error:  # a lone surrogate, or a number beyond 64 bits
        raise _BadLine(f"cannot be encoded as a request: {error}") from error
    return BenchRequest(
        index=index,
        line=line,
        body=body,
        request_class=request_class,
        checks=make_checks(value.get("check"), value.get("reference")),
    )


def _question(turns: object, category: object) -> dict[str, Any]:
    """The first turn of a question of Spec-Bench (Xia et al., 2024) as a request, with its category as the class."""
    if not (isinstance(turns, list) and turns and isinstance(turns[0], str)):
        raise _BadLine(f"'turns' must be a list of texts, got {shorten(json.dumps(turns))}")
    body = {"messages": [{"role": "user", "content": turns[0]}], "max_tokens": QUESTION_TOKENS, "temperature": 0}
    return {"request": body, "class": category}


EMBEDDED = "embedded"
_TIMEOUT_S = 120.0
_MAX_REQUESTS = 100_000


def is_embedded(text: str) -> bool:
    """Whether `--requests` names the shipped workload and not a file."""
    return text.partition(":")[0] == EMBEDDED


def embedded_requests(text: str) -> BenchFile:
    """The requests of `embedded:COUNT` or `embedded:COUNT:SEED`. Raises `CommandError`."""
    count, seed = _numbers(text)
    command = ["-m", "slipstream_engine.embedded.mixed", "--requests", str(count), "--seed", str(seed)]
    try:
        done = subprocess.run([sys.executable, *command], capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"the shipped workload was not generated within {_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise CommandError(f"the shipped workload cannot be generated: {reason}")
    return parse_requests(done.stdout.splitlines(keepends=True), source=f"{EMBEDDED}:{count}:{seed}")


def _numbers(text: str) -> tuple[int, int]:
    found = re.fullmatch(rf"{EMBEDDED}:(\d{{1,9}})(?::(\d{{1,9}}))?", text, re.ASCII)
    if found and 1 <= int(found[1]) <= _MAX_REQUESTS:
        return int(found[1]), int(found[2] or 0)
    raise CommandError(
        f"--requests: the shipped workload is embedded:COUNT or embedded:COUNT:SEED with a count of 1 to "
        f"{_MAX_REQUESTS}, got {text!r}",
        exit_code=2,
    )
