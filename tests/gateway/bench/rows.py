"""Rows and results of a bench that were never measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream_tools.bench.results import Header, Results, Row, Settings


def row(index: int, mode: str, **fields: Any) -> Row:
    """A whole measured answer; fields may be given, `e2e_s` and `output_tokens` usually are."""
    arm = "plain" if mode == "plain" else "speculative"
    body = {"model": "m", "messages": [{"role": "user", "content": f"request {index}"}], "temperature": 0}
    values: dict[str, Any] = {
        "index": index,
        "round": 0,
        "mode": mode,
        "request": body,
        "arm": arm,
        "reason": "client_asked",
        "request_class": "summarization/long",
        "draft_length": 0 if arm == "plain" else 4,
        "status": 200,
        "ttft_s": 0.01,
        "tpot_s": 0.01,
        "e2e_s": 1.0,
        "prompt_tokens": 20,
        "output_tokens": 100,
        "text_hash": "same",
        "concurrency": 1,
        "phase": "measure",
    }
    return Row(**{**values, **fields})


def results(rows: Sequence[Row], **settings: Any) -> Results:
    """Results of made-up rows; the modes are theirs."""
    values: dict[str, Any] = {
        "requests": "calls.jsonl",
        "digest": "0",
        "system": "http://gateway",
        "modes": tuple(dict.fromkeys(row.mode for row in rows)),
        "concurrency": tuple(dict.fromkeys(row.concurrency for row in rows)),
        "drafts": (),
        "rounds": 1,
        "warmup": 0,
        "seed": 0,
        "timeout_s": 60.0,
        "model": None,
        "limit": None,
    }
    header = Header(settings=Settings(**{**values, **settings}))
    return Results(header, list(rows), 1)


def pairs(times_s: Sequence[tuple[float, float]], **fields: Any) -> list[Row]:
    """Rows of plain and speculative answers from (plain seconds, speculative seconds) pairs."""
    return [
        row(index, mode, e2e_s=seconds, **fields)
        for index, both in enumerate(times_s)
        for mode, seconds in zip(("plain", "speculative"), both, strict=True)
    ]
