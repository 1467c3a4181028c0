"""What the bench's tests share: a bench file, a gateway in front of two scripted servers, and made-up rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
