"""A running system for benchmarks: the real Triton with the embedded pair, and the gateway before it."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from slipstream_core.manifest import EMBEDDED_MANIFEST, load_file
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.model_repository import write_repository
from slipstream_tools.up.options import UpOptions
from slipstream_tools.up.servers import local_pairs
from slipstream_tools.up.triton_server import TritonPorts, TritonServer

MODEL, PAIR = "slipstream-embedded", "embedded"


class System(NamedTuple):
    """Where it listens: Triton's gRPC port and the gateway's URL."""

    triton_address: str
    gateway_url: str


@contextmanager
def running_system(
    manifest: Path = EMBEDDED_MANIFEST, *, workers: int = 1, capture_store: Path | None = None
) -> Iterator[System]:
    """Start both on free ports; stops them at the end."""
    table = load_file(manifest)
    grpc, http, metrics, port = free_ports(4)
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
            store = None if capture_store is None else str(capture_store)
            up = UpOptions(manifest=manifest, port=port, grpc_port=grpc, workers=workers, capture_store=store)
            gateway = GatewayProcess(options=up, run_dir=folder)
            gateway.wait_ready(timeout_s=60)
            yield System(f"127.0.0.1:{grpc}", up.url)
        finally:
            if gateway is not None:
                gateway.stop()
            server.stop()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that were free a moment ago."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
