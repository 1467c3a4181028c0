"""Triton killed in the middle of a stream: the client is told, and the next request works once it is back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_engine.embedded import demo
from slipstream_gateway.up.gateway_process import GatewayProcess
from slipstream_gateway.up.options import UpOptions
from slipstream_gateway.up.triton_server import TritonPorts

pytestmark = pytest.mark.timeout(240)

BODY: dict[str, Any] = {
    "model": "slipstream-embedded",
    "messages": demo.CALL_SUMMARY,
    # So hot that the answer does not end by itself.
    "temperature": 2.0,
    "seed": 1,
}


def test_stream_ends_with_an_error_event_and_the_gateway_recovers(
    tmp_path: Path, free_ports: Callable[[int], list[int]], start_triton: Callable[..., Any]
) -> None:
    port, grpc, http, metrics = free_ports(4)
    ports = TritonPorts(grpc=grpc, http=http, metrics=metrics)
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    triton = start_triton(tmp_path / "first", ports)
    options = UpOptions(port=port, grpc_port=grpc)
    gateway = GatewayProcess(options=options, local_pairs=["embedded"], run_dir=tmp_path)
    try:
        gateway.wait_ready(timeout_s=60)
        events = _events_of_a_killed_stream(options.url, triton.child.pid)
        assert "error" in events[-1]
        assert events[-1]["error"]["message"]
        assert not any(event["choices"][0]["finish_reason"] for event in events[:-1] if event["choices"])

        while_down = httpx.post(f"{options.url}/v1/chat/completions", json=BODY | {"max_tokens": 4}, timeout=30)
        assert while_down.status_code == 503
        assert int(while_down.headers["retry-after"]) > 0

        triton.stop()
        triton = start_triton(tmp_path / "second", ports)
        gateway.wait_ready(timeout_s=30)
        back = httpx.post(f"{options.url}/v1/chat/completions", json=BODY | {"max_tokens": 4}, timeout=30)
        assert back.status_code == 200, back.text
    finally:
        gateway.stop()
        triton.stop()


def _events_of_a_killed_stream(url: str, triton_pid: int) -> list[dict[str, Any]]:
    """Stream an answer, kill Triton after its third event, and return every event that came."""
    events: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY | {"stream": True}, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == 3:
                    os.kill(triton_pid, signal.SIGKILL)
    return events
