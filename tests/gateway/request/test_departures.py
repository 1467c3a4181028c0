"""A model that goes away while clients use it is logged and counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import eventually

RUNNING = "the model acme of pair pair is gone though clients use it: 1 requests run on"


@pytest.fixture
def gateway(openai_server: Any, run_gateway: Any, tmp_path: Path) -> Iterator[tuple[Any, Any, str]]:
    server = openai_server()
    text = manifest_text([server.url])
    with run_gateway(tmp_path / "manifest.yaml", text) as started:
        yield started, server, text


def test_model_that_goes_away_under_a_running_answer_is_logged_and_counted(
    gateway: tuple[Any, Any, str], caplog: pytest.LogCaptureFixture
) -> None:
    started, server, text = gateway
    assert started.metric("slipstream_models_removed_in_use_total") == 0
    server.pace_s = 0.2
    body = chat("tokens=1000", stream=True)
    with httpx.stream("POST", f"{started.url}/v1/chat/completions", json=body, timeout=60) as running:
        lines = running.iter_lines()
        next(lines)
        started.manifest.write_text(text.replace("model: acme\n", "model: other\n", 1))
        eventually(lambda: started.metric("slipstream_models_removed_in_use_total") == 1)
        assert RUNNING in caplog.text
        server.pace_s = 0.0
        assert [line for line in lines if line][-1] == "data: [DONE]"
