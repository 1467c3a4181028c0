"""Captured answers as training data, one JSON object per line.

- `speculators`: `input_ids` and `loss_mask` (1 at the answer's tokens), as `speculators prepare-data` reads them
  without tokenizing anything (speculators 0.9). Only answers for which the server returned the tokens of both.
- `specforge`: `id`, `conversations` and `tools`, as SpecForge reads them, and `speculators prepare-data` with a server
  that renders them.
- `jsonl`: all columns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, NamedTuple

import pyarrow as pa

Row = Mapping[str, Any]


class Counts(NamedTuple):
    """The answers that were written, and those left out by cause."""

    written: int
    left_out: Mapping[str, int]


class _LeftOutError(Exception):
    """The format cannot express the answer; the message is the cause."""


def write(tables: Iterable[pa.Table], format: str, output: IO[str]) -> Counts:
    """Write the rows of `tables` in one of `FORMATS`."""
    written, left_out = 0, Counter[str]()
    for table in tables:
        for row in table.to_pylist():
            try:
                line = FORMATS[format](row)
            except _LeftOutError as exc:
                left_out[str(exc)] += 1
                continue
            output.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
            written += 1
    return Counts(written, left_out)


def summary(counts: Counts) -> str:
    causes = "; ".join(f"{count} {cause}" for cause, count in sorted(counts.left_out.items()))
    return f"{counts.written} answers written{f', left out: {causes}' if causes else ''}"


def _speculators(row: Row) -> dict[str, Any]:
    prompt, answer = row["prompt_token_ids"], row["token_ids"]
    if row["redactions"]:
        raise _LeftOutError("redacted, so without tokens")
    if not prompt or not answer:
        raise _LeftOutError("without the tokens of prompt and answer")
    return {"input_ids": [*prompt, *answer], "loss_mask": [0] * len(prompt) + [1] * len(answer)}


def _specforge(row: Row) -> dict[str, Any]:
    request = json.loads(row["request"])
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _LeftOutError("not a chat")
    if not row["is_text"]:
        raise _LeftOutError("with reasoning or tool calls")
    answer = {"role": "assistant", "content": row["answer"]}
    tools = {"tools": request["tools"]} if "tools" in request else {}
    return {"id": row["id"], "conversations": [*messages, answer], **tools}


FORMATS: Mapping[str, Callable[[Row], Mapping[str, Any]]] = {
    "speculators": _speculators,
    "specforge": _specforge,
    "jsonl": dict,
}
