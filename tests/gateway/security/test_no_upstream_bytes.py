"""Where a server breaks its protocol, none of its bytes is in a log, a span, a metric, the audit log or an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.security.broken_servers import (
    GRPC_ANSWERS,
    HTTP_ANSWERS,
    SECRET,
    BrokenHttpServer,
    BrokenTriton,
)
from tests.support.gateway_process import Process
from tests.support.manifests import arm, external, pair_yaml
from tests.support.polling import PATIENCE_S
from tests.support.threaded_server import ThreadedServer


@pytest.fixture
def http_server() -> Iterator[ThreadedServer]:
    with BrokenHttpServer() as server:
        yield server


@pytest.fixture
def triton() -> Iterator[ThreadedServer]:
    with BrokenTriton() as server:
        yield server


def ask(client: httpx.Client, model: str, kind: str, *, stream: bool) -> tuple[int, bytes]:
    """The status, and what of the answer is an error."""
    answer = client.post("/v1/completions", json={"model": model, "prompt": kind, "stream": stream})
    if answer.status_code != 200:
        return answer.status_code, answer.content
    errors = [event for event in answer.content.split(b"\n\n") if b'"error"' in event]
    return 200, b"\n\n".join(errors)


def test_bytes_of_a_server_that_breaks_its_protocol_are_nowhere(
    tmp_path: Path,
    free_ports: Callable[[int], list[int]],
    http_server: ThreadedServer,
    triton: ThreadedServer,
    otlp_receiver: Any,
) -> None:
    manifest, audit, log = tmp_path / "pairs.yaml", tmp_path / "audit.jsonl", tmp_path / "gateway.log"
    arms = {
        "web": arm(http_server.url, model="web"),
        "triton": arm(f"grpc://127.0.0.1:{triton.port}", model="triton", protocol="triton"),
    }
    pairs = [pair_yaml(external(plain), name=name, model=name) for name, plain in arms.items()]
    manifest.write_text("---\n".join(pairs))
    [port] = free_ports(1)
    options = ["--log-level", "debug", "--audit-log", str(audit)]
    # aiohttp waits for more of a body whose framing broke after a part of it.
    options += ["--chunk-timeout", "1", "--total-timeout", "3"]
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp_receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    found: dict[str, Any] = {}
    process = Process(manifest, port, *options, log=log, environment=environment)
    try:
        process.wait_live()
        with httpx.Client(base_url=process.url, timeout=PATIENCE_S) as client:
            for model, kinds in (("web", HTTP_ANSWERS), ("triton", GRPC_ANSWERS)):
                for kind in kinds:
                    for stream in (False, True):
                        found[f"{model}, {kind}, stream {stream}"] = ask(client, model, kind, stream=stream)
            metrics = client.get("/metrics").content + client.get("/v1/evidence").content
    finally:
        process.stop()
    assert process.child.returncode == 0
    failed = [json.loads(line).get("status") for line in audit.read_text().splitlines()]
    assert failed.count("upstream_failed") > len(HTTP_ANSWERS) + len(
        GRPC_ANSWERS
    )  # the servers were asked, and not believed
    assert otlp_receiver.got
    places = {
        "log": log.read_bytes(),
        "spans": otlp_receiver.all_bytes(),
        "audit log": audit.read_bytes(),
        "metrics": metrics,
    }
    places |= {what: error for what, (_, error) in found.items()}
    assert [place for place, data in places.items() if SECRET in data] == []
    assert b"slipstream_gateway/" not in places["log"]  # no traceback of ours, which would print the causes of an error
