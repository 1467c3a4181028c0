"""A running system for benchmarks: the real Triton with the embedded pair, and the gateway before it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from slipstream_core.manifest import EMBEDDED_MANIFEST, load_file
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.model_repository import write_repository
from slipstream_tools.up.options import UpOptions
from slipstream_tools.up.servers import local_pairs
from slipstream_tools.up.triton_server import TritonPorts, TritonServer

from tests.support.ports import lasting_ports

MODEL, PAIR = "slipstream-embedded", "embedded"


class System(NamedTuple):
    """Where it listens: Triton's gRPC port and the gateway's URL."""

    triton_address: str
    gateway_url: str


@contextmanager
def running_system(manifest: Path = EMBEDDED_MANIFEST) -> Iterator[System]:
    """Start both on free ports; stops them at the end."""
    table = load_file(manifest)
    grpc, http, metrics, port = lasting_ports(4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = write_repository(local_pairs(table), manifest_folder=table.folder, folder=folder / "models")
        server = TritonServer(
            model_repository=repository,
            run_dir=folder,
            ports=TritonPorts(grpc=grpc, http=http, metrics=metrics),
        )
        gateway = None
        try:
            server.wait_ready(timeout_s=90)
            up = UpOptions(manifest=manifest, port=port, grpc_port=grpc)
            gateway = GatewayProcess(options=up, run_dir=folder)
            gateway.wait_ready(timeout_s=60)
            yield System(f"127.0.0.1:{grpc}", up.url)
        finally:
            if gateway is not None:
                gateway.stop()
            server.stop()


class Streamed(NamedTuple):
    """One streamed answer as its client saw it; `first_s` and `last_s` are of events with text, since the request."""

    text: str
    first_s: float
    last_s: float
    seconds: float
    usage: dict[str, Any]

    @property
    def tpot_s(self) -> float:
        return (self.last_s - self.first_s) / max(int(self.usage["completion_tokens"]) - 1, 1)


def stream(client: httpx.Client, messages: object, max_tokens: int, mode: str, *, model: str = MODEL) -> Streamed:
    """Asks for a greedy answer in `mode`."""
    body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    text, times, usage = "", [0.0], {}
    began_s = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body, headers={"x-slipstream-mode": mode}) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event: Mapping[str, Any] = json.loads(line.removeprefix("data: "))
                if part := "".join(choice["delta"].get("content") or "" for choice in event["choices"]):
                    text += part
                    times.append(time.perf_counter() - began_s)
                usage = event.get("usage") or usage
    return Streamed(text, times[min(1, len(times) - 1)], times[-1], time.perf_counter() - began_s, usage)
