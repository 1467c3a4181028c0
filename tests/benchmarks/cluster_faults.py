"""What requests notice when a part of the cluster is gone: `python -m tests.benchmarks.cluster_faults [--seconds 120]`.

A real API server, operator and Redis, and two gateways that take their manifest from the cluster, under a closed loop
of whole answers. One part after the other is killed for `--seconds`, and comes back. Goal: no request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop
from slipstream_tools.up.processes import Child

from tests.benchmarks.gateway_load import Result, percentile, run
from tests.benchmarks.gateway_openai import WHOLE, upstream
from tests.benchmarks.kill import NAMESPACE, OBJECTS, gateway
from tests.benchmarks.redis_faults import RedisServer
from tests.support.kube import CRDS, KubeApiServer, install_chart

CONNECTIONS = 4
SETTLE_S = 10.0
BEGIN_S = 2.0


class Phase(NamedTuple):
    """A stretch of load; `begin` is called two seconds into it."""

    name: str
    seconds: float
    begin: Callable[[], None] | None = None


class Operator:
    """A `slipstream operator` that can be killed and started again."""

    def __init__(self, kube: KubeApiServer, folder: Path, redis_url: str) -> None:
        self._command = [
            *(sys.executable, "-m", "slipstream_tools.cli", "operator"),
            *("--kubeconfig", str(kube.kubeconfig()), "--namespace", NAMESPACE),
        ]
        self._log_path = folder / "operator.log"
        self._env = {**os.environ, "SLIPSTREAM_REDIS_URL": redis_url}
        self.start()

    def start(self) -> None:
        self._child = Child(name="the operator", command=self._command, log_path=self._log_path, env=self._env)

    def kill(self) -> None:
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.stop(timeout_s=5)

    def check(self) -> None:
        """Raises where it has ended by itself."""
        if (status := self._child.exit_status()) is not None:
            raise RuntimeError(f"the operator {status}:\n{self._child.log_tail()}")


def phases(kube: KubeApiServer, operator: Operator, redis: RedisServer, seconds: float) -> list[Phase]:
    return [
        Phase("everything up", SETTLE_S),
        Phase("API server killed", seconds, lambda: kube.stop(signal.SIGKILL)),
        Phase("API server back", SETTLE_S, kube.start),
        Phase("operator killed", seconds, operator.kill),
        Phase("operator back", SETTLE_S, operator.start),
        Phase("Redis killed", seconds, redis.kill),
        Phase("Redis back, empty", SETTLE_S, redis.start),
    ]


async def load(ports: list[int], seconds: float) -> list[Result]:
    return await asyncio.gather(*(run(port, WHOLE, connections=CONNECTIONS, seconds=seconds) for port in ports))


def measure(ports: list[int], todo: list[Phase]) -> int:
    """Prints a line per phase; returns how many answers were not whole.

    The load has a thread of its own: what a phase begins must be started by the main one (see `Child`).
    """
    bad = 0
    print(f"{'':20} {'seconds':>8} {'requests':>9} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'failed':>7}", flush=True)
    with ThreadPoolExecutor(max_workers=1) as thread:
        for phase in todo:
            running = thread.submit(lambda seconds: uvloop.run(load(ports, seconds)), phase.seconds)
            if phase.begin is not None:
                time.sleep(BEGIN_S)
                phase.begin()
            bad += row(phase, running.result())
    return bad


def row(phase: Phase, results: list[Result]) -> int:
    took_ms = [1e3 * answer.seconds for result in results for answer in result.answers]
    failed = sum(result.bad for result in results)
    figures = f"{percentile(took_ms, 0.5):8.2f} {percentile(took_ms, 0.99):8.2f} {max(took_ms):8.1f}"
    print(f"{phase.name:20} {phase.seconds:8.0f} {len(took_ms):9} {figures} {failed:7}", flush=True)
    return failed


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[KubeApiServer, Operator, RedisServer, list[int]]]:
    """The parts, and the gateways' ports."""
    core = sorted(os.sched_getaffinity(0))[-1]
    with ExitStack() as stack:
        kube = stack.enter_context(KubeApiServer(folder / "kube"))
        upstream_port = stack.enter_context(upstream(core))
        install_chart(kube, CRDS)
        kube.namespace(NAMESPACE)
        kube.client().apply_yaml(OBJECTS.format(port=upstream_port), namespace=NAMESPACE)
        redis = RedisServer(folder, core)
        stack.callback(redis.kill)
        redis_url = f"redis://127.0.0.1:{redis.port}/0"
        operator = Operator(kube, folder, redis_url)
        stack.callback(operator.kill)
        names = ("gateway-0", "gateway-1")
        ports = [stack.enter_context(gateway(kube, folder, name, redis_url)) for name in names]
        yield kube, operator, redis, ports
        operator.check()


def main() -> int:
    parser = argparse.ArgumentParser(description="What requests notice when a part of the cluster is gone.")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each part is gone (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as (kube, operator, redis, ports):
        bad = measure(ports, phases(kube, operator, redis, options.seconds))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
