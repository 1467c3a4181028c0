"""What the bench's tests share: a bench file, a gateway in front of two scripted servers, and made-up rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from slipstream_tools.bench.results import Header, Results, Row, Settings

from tests.gateway.pair_manifest import manifest_text


@pytest.fixture
def bench_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes lines as a bench file: values as JSON, texts as they are."""

    def write(*lines: object) -> Path:
        path = tmp_path / "calls.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts) + "\n")
        return path

    return write


@pytest.fixture
def two_arms(gateway: Any, openai_server: Any) -> Callable[..., Any]:
    """A gateway with a server for each arm; `.plain` and `.speculative` are the servers. `policy` is put into the
    policy's spec."""

    def start(policy: str = "") -> Any:
        plain, speculative = openai_server(), openai_server()
        started = gateway(manifest_text([plain.url], [speculative.url], policy=policy))
        started.plain, started.speculative = plain, speculative
        return started

    return start


@pytest.fixture(scope="session")
def row() -> Callable[..., Row]:
    """A whole measured answer; fields may be given, `e2e_s` and `output_tokens` usually are."""

    def make(index: int, mode: str, **fields: Any) -> Row:
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

    return make


@pytest.fixture(scope="session")
def results() -> Callable[..., Results]:
    """Results of made-up rows; the modes are theirs."""

    def make(rows: Sequence[Row], **settings: Any) -> Results:
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

    return make


@pytest.fixture(scope="session")
def pairs(row: Callable[..., Row]) -> Callable[..., list[Row]]:
    """Rows of plain and speculative answers from (plain seconds, speculative seconds) pairs."""

    def make(times_s: Sequence[tuple[float, float]], **fields: Any) -> list[Row]:
        return [
            row(index, mode, e2e_s=seconds, **fields)
            for index, both in enumerate(times_s)
            for mode, seconds in zip(("plain", "speculative"), both, strict=True)
        ]

    return make
