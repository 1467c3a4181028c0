"""Triton that is not up, dies under a stream, and comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from slipstream_gateway.manifest import EMBEDDED_MANIFEST
from slipstream_gateway.up.triton_server import TritonPorts

WAIT_S = 60.0
PROMPT = "Summarize the call for the CRM: reason, agent actions, outcome, next step.\n\nCustomer: My invoice is wrong."


def test_triton_killed_under_a_stream_ends_it_with_an_error_and_comes_back(
    gateway: Callable[..., Any],
    start_triton: Callable[..., Any],
    free_ports: Callable[[int], list[int]],
    tmp_path: Path,
) -> None:
    grpc, http, metrics = free_ports(3)
    ports = TritonPorts(grpc=grpc, http=http, metrics=metrics)
    endpoint = f'kind: slipstream\n    endpoints: ["grpc://127.0.0.1:{grpc}"]'
    served = gateway(EMBEDDED_MANIFEST.read_text().replace("kind: slipstream", endpoint))
    body = {"model": "slipstream-embedded", "messages": [{"role": "user", "content": PROMPT}]}
    url = f"{served.url}/v1/chat/completions"

    down = httpx.post(url, json=body, timeout=WAIT_S)
    assert (down.status_code, down.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert int(down.headers["retry-after"]) >= 1

    (tmp_path / "first").mkdir()
    server = start_triton(tmp_path / "first", ports)
    try:
        streamed = {**body, "stream": True, "max_tokens": 400, "temperature": 2, "seed": 1}
        with httpx.stream("POST", url, json=streamed, timeout=WAIT_S) as response:
            assert response.status_code == 200
            blocks = response.iter_bytes()
            text = next(blocks)
            os.kill(server.child.pid, signal.SIGKILL)
            text += b"".join(blocks)
    finally:
        server.stop()
    assert b'"code":"upstream_' in text.rsplit(b"data: ", 1)[1]
    assert b"[DONE]" not in text
    assert httpx.post(url, json=body, timeout=WAIT_S).status_code == 503

    (tmp_path / "second").mkdir()
    server = start_triton(tmp_path / "second", ports)
    try:
        back = httpx.post(url, json={**body, "max_tokens": 4}, timeout=WAIT_S)
        assert back.status_code == 200
    finally:
        server.stop()
