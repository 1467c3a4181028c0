"""A paced server for measuring what a gateway adds, and a gateway process before it, each on a core of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.e2e.chaos.paced_server import PacedServer
from tests.support.command import SLIPSTREAM
from tests.support.gateway_process import wait_live
from tests.support.manifests import arm, external, pair_yaml
from tests.support.ports import lasting_ports


def pair(upstream_url: str, policy: str = "") -> str:
    """A pair before the server at `upstream_url`. `policy`: more fields of its policy."""
    engine = external(*[arm(upstream_url, model="canned")] * 2)
    return pair_yaml(engine, "maxDraftTokens: 6", name="canned", model="canned", policy=policy)


GATEWAY_CORE, OTHER_CORE = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
_STOP_S = 40


@contextmanager
def upstream() -> Iterator[str]:
    """The URL of a paced server on `OTHER_CORE`."""
    with PacedServer() as server:
        os.sched_setaffinity(server.pid, {OTHER_CORE})
        yield server.url


def manifest(folder: Path, upstream_url: str, policy: str = "") -> tuple[str, str]:
    """The options of a gateway for a manifest before the server at `upstream_url`. `policy`: more fields of it."""
    file = folder / "pair.yaml"
    file.write_text(pair(upstream_url, policy))
    return "-f", str(file)


@contextmanager
def gateway(
    folder: Path,
    *options: str,
    core: int | None = GATEWAY_CORE,
    name: str = "gateway",
    program: Sequence[str] = SLIPSTREAM,
) -> Iterator[tuple[int, psutil.Process]]:
    """The port and the process of a `slipstream gateway` on `core`, with its log in `folder`. `program`: the command
    `slipstream` of another installation."""
    [port] = lasting_ports(1)
    command = [*program, "gateway", "--port", str(port), *options]
    with (folder / f"{name}.log").open("ab") as log:
        process = psutil.Popen(command, stderr=log)
    try:
        if core is not None:
            process.cpu_affinity([core])
        wait_live(process, f"http://127.0.0.1:{port}/health/live")
        yield port, process
    finally:
        process.terminate()
        process.wait(_STOP_S)


def cpu_s(process: psutil.Process) -> float:
    """The CPU time of `process` so far."""
    times = process.cpu_times()
    return float(times.user + times.system)
