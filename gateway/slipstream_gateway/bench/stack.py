"""The embedded stack of a bench: Triton with the manifest's pairs and a gateway in front, on free ports."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slipstream_gateway.manifest import load_file
from slipstream_gateway.up.gateway_process import GatewayProcess
from slipstream_gateway.up.model_repository import write_repository
from slipstream_gateway.up.options import LOOPBACK, UpOptions
from slipstream_gateway.up.servers import local_pairs
from slipstream_gateway.up.triton_server import TritonPorts, TritonServer

GATEWAY_READY_S = 30.0
REDIS_VARIABLE = "SLIPSTREAM_REDIS_URL"


@contextmanager
def running_stack(manifest: bytes, *, load_timeout_s: float, classifier: Path | None = None) -> Iterator[str]:
    """Serve `manifest`, whose sources are absolute, and yield the gateway's URL; both stop at the end.

    Raises:
        CommandError: Triton or the gateway does not start, with its own reason.
        ManifestError: the manifest is not good.
    """
    grpc, http, metrics, port = _free_ports(4)
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="slipstream-bench-")))
        path = folder / "manifest.yaml"
        path.write_bytes(manifest)
        table = load_file(path)
        if pairs := local_pairs(table):
            repository = write_repository(pairs, manifest_folder=folder, folder=folder / "model_repository")
            ports = TritonPorts(host=LOOPBACK, grpc=grpc, http=http, metrics=metrics)
            triton = TritonServer(model_repository=repository, run_dir=folder, ports=ports)
            cleanup.callback(triton.stop)
            triton.wait_ready(timeout_s=load_timeout_s)
        gateway = _gateway(UpOptions(manifest=path, port=port, grpc_port=grpc, classifier=classifier), folder)
        cleanup.callback(gateway.stop)
        gateway.wait_ready(timeout_s=GATEWAY_READY_S)
        yield f"http://{LOOPBACK}:{port}"


def _gateway(options: UpOptions, folder: Path) -> GatewayProcess:
    """A gateway that shares nothing with others: what a bench does must not teach those in service, nor they it."""
    shared = os.environ.pop(REDIS_VARIABLE, None)
    try:
        return GatewayProcess(options=options, run_dir=folder)
    finally:
        if shared is not None:
            os.environ[REDIS_VARIABLE] = shared


def _free_ports(count: int) -> list[int]:
    """Distinct ports on the loopback that were free a moment ago."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in sockets]
