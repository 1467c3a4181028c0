"""Triton that is not up, is killed or halted under streams, and comes back."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.settings import Deadlines
from slipstream_tools.up.triton_server import TritonPorts

from tests.support.polling import PATIENCE_S

CONNECT_S = 15.0
ROUNDS = 10
PROMPT = "Summarize the call for the CRM: reason, agent actions, outcome, next step.\n\nCustomer: My invoice is wrong."
BODY = {"model": "slipstream-embedded", "messages": [{"role": "user", "content": PROMPT}]}
LONG = {**BODY, "stream": True, "max_tokens": 400, "temperature": 2, "seed": 1}


def manifest(*endpoints: str) -> str:
    named = ", ".join(f'"grpc://{endpoint}"' for endpoint in endpoints)
    return EMBEDDED_MANIFEST.read_text().replace("kind: slipstream", f"kind: slipstream\n    endpoints: [{named}]")


def parts(response: httpx.Response) -> Iterator[str]:
    """The texts of a stream, and `[DONE]` where it has its regular end."""
    for line in response.iter_lines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            yield data
        elif data:
            event = json.loads(data)
            assert "choices" in event, event
            yield event["choices"][0]["delta"].get("content") or ""


def ask(url: str, disturb: Callable[[], None] = lambda: None) -> str:
    """A long answer, where something happens after its first event."""
    with httpx.stream("POST", url, json=LONG, timeout=PATIENCE_S) as response:
        assert (response.status_code, response.headers["x-slipstream-resumable"]) == (200, "true")
        found = parts(response)
        first = next(found)
        disturb()
        return "".join([first, *found])


def test_streams_outlive_a_triton_that_is_killed_and_one_that_halts(
    gateway: Callable[..., Any],
    run_gateway: Callable[..., Any],
    start_triton: Callable[..., Any],
    triton_endpoint: str,
    free_ports: Callable[[int], list[int]],
    tmp_path: Path,
) -> None:
    grpc, http, metrics = free_ports(3)
    ports = TritonPorts(grpc=grpc, http=http, metrics=metrics)
    served = gateway(manifest(f"127.0.0.1:{grpc}"), deadlines=Deadlines(connect_s=CONNECT_S, resume_s=PATIENCE_S))
    url = f"{served.url}/v1/chat/completions"

    down = httpx.post(url, json=BODY, timeout=PATIENCE_S)
    assert (down.status_code, down.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert int(down.headers["retry-after"]) >= 1

    servers = []

    def start() -> None:
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(start_triton(folder, ports))

    try:
        start()
        undisturbed = ask(url)
        assert undisturbed.endswith("[DONE]")

        def kill_and_start_again() -> None:
            os.kill(servers[-1].child.pid, signal.SIGKILL)
            start()

        # A round's stream may have ended at the server before the kill: then another round shows it.
        for _ in range(ROUNDS):
            assert ask(url, kill_and_start_again) == undisturbed
            if served.metric("slipstream_resumed_total", cause="upstream_unavailable", result="resumed"):
                break
        assert served.metric("slipstream_resumed_total", cause="upstream_unavailable", result="resumed") == 1

        two = manifest(f"127.0.0.1:{grpc}", triton_endpoint)
        # A busy machine's Triton may be silent for a second, and is not halted.
        deadlines = Deadlines(connect_s=CONNECT_S, stall_s=4.0, total_s=PATIENCE_S)
        with (
            run_gateway(tmp_path / "two.yaml", two, deadlines=deadlines) as both,
            ThreadPoolExecutor(2) as pool,
        ):
            url = f"{both.url}/v1/chat/completions"
            # Likewise before the halt.
            for _ in range(ROUNDS):
                started = threading.Event()
                other = pool.submit(ask, url, started.set)
                assert started.wait(PATIENCE_S)
                halted = ask(url, lambda: os.kill(servers[-1].child.pid, signal.SIGSTOP))
                assert (halted, other.result()) == (undisturbed, undisturbed)
                if both.metric("slipstream_resumed_total", cause="stalled", result="resumed"):
                    break
                os.kill(servers[-1].child.pid, signal.SIGCONT)
            assert both.metric("slipstream_resumed_total", cause="stalled", result="resumed") == 1
            # Nor does what has no first byte yet wait for it.
            whole_answers = [pool.submit(httpx.post, url, json=BODY, timeout=PATIENCE_S) for _ in range(2)]
            assert [answer.result().status_code for answer in whole_answers] == [200, 200]
            os.kill(servers[-1].child.pid, signal.SIGCONT)
    finally:
        for server in servers:
            server.stop()
