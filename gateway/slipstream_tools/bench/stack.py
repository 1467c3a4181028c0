"""The stack of a bench: servers for the manifest's pairs and a gateway, on free ports."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.options import LOOPBACK, UpOptions
from slipstream_tools.up.ports import free_ports
from slipstream_tools.up.prepare import prepare
from slipstream_tools.up.run_folder import make_run_folder
from slipstream_tools.up.servers import LocalServers

GATEWAY_READY_S = 30.0


@contextmanager
def running_stack(manifest: bytes, *, load_timeout_s: float, classifier: Path | None = None) -> Iterator[str]:
    """Serve `manifest`, whose sources are absolute, and yield the gateway's URL; stop all processes on exit.

    Raises:
        CommandError: a server or the gateway does not start; has its reason.
        ManifestError: the manifest is invalid.
    """
    [port] = free_ports(1, host=LOOPBACK)
    with ExitStack() as cleanup:
        folder = make_run_folder("slipstream-bench-", report=_say)
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        path = folder / "manifest.yaml"
        path.write_bytes(manifest)
        # Without the environment's Redis: a bench must not teach the gateways in service, nor learn from them.
        options = UpOptions(manifest=path, port=port, classifier=classifier, timeout_s=load_timeout_s, redis="")
        ready = prepare(options, run_dir=folder, report=_say, stopping=lambda: False)
        servers = LocalServers(ready.table, options=ready.options, run_dir=folder, vllm=ready.vllm)
        cleanup.callback(servers.stop)
        servers.wait_ready(report=_say, stopping=lambda: False)
        gateway = GatewayProcess(options=ready.options, run_dir=folder, addresses=servers.addresses)
        cleanup.callback(gateway.stop)
        gateway.wait_ready(timeout_s=GATEWAY_READY_S)
        yield options.url


def _say(line: str) -> None:
    print(f"slipstream: {line}", file=sys.stderr, flush=True)
