"""Prompts of the data sets, read from files that the project does not contain.

The contact-centre workload is the embedded pair's, which is generated here.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slipstream_engine.embedded.mixed import mixed

MAX_TOKENS = 160
_TOOL_ANSWER = 'Answer with one JSON object {"name": ..., "arguments": {...}} that calls one of these functions:\n'


class Prompt(NamedTuple):
    """`request` is the client's body; `messages` are those that the model reads, in which tools are text."""

    data_set: str
    category: str
    request: dict[str, Any]
    messages: list[dict[str, str]]


def spec_bench(path: Path, per_category: int) -> list[Prompt]:
    """The first turn of `per_category` questions of each category, and of twice as many with retrieved passages."""
    found: Mapping[str, list[Prompt]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        data_set = "rag" if row["category"] == "rag" else "spec-bench"
        found[row["category"]].append(_chat(data_set, row["category"], row["turns"][0]))
    return [one for name, some in found.items() for one in some[: (6 if name == "rag" else 1) * per_category]]


def tools(path: Path, count: int) -> list[Prompt]:
    """Questions with function definitions, from `path`."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [_with_tools(row) for row in random.Random(0).sample(rows, count)]


def code(path: Path, count: int) -> list[Prompt]:
    """Python functions to complete."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        _chat("code", "code", f"Complete this Python function.\n\n```python\n{row['prompt']}```")
        for row in random.Random(0).sample(rows, count)
    ]


def contact(count: int) -> list[Prompt]:
    """The contact-centre workload of the embedded pair."""
    return [
        Prompt("contact", row["class"], {**row["request"], "temperature": 0}, row["request"]["messages"])
        for row in mixed(count, 1)
    ]


def _chat(data_set: str, category: str, text: str) -> Prompt:
    messages = [{"role": "user", "content": text}]
    return Prompt(data_set, category, _body(messages), messages)


def _with_tools(row: Mapping[str, Any]) -> Prompt:
    messages: Sequence[dict[str, str]] = row["question"][0]
    functions = [_json_schema(function) for function in row["function"]]
    declared = [{"type": "function", "function": {**one, "name": one["name"].replace(".", "_")}} for one in functions]
    system = {"role": "system", "content": _TOOL_ANSWER + json.dumps(functions)}
    return Prompt("tools", "tools", {**_body(messages), "tools": declared}, [system, *messages])


def _json_schema(value: Any) -> Any:
    """BFCL's types have Python's names."""
    if isinstance(value, dict):
        names = {"dict": "object", "float": "number", "list": "array", "tuple": "array", "any": "string"}
        return {
            key: names.get(part, part) if key == "type" and isinstance(part, str) else _json_schema(part)
            for key, part in value.items()
        }
    return [_json_schema(part) for part in value] if isinstance(value, list) else value


def _body(messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    return {"model": "slipstream-embedded", "messages": list(messages), "max_tokens": MAX_TOKENS, "temperature": 0}
