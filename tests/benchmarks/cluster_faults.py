"""What requests notice when a part of the cluster is gone.

A real API server, operator and Redis, and two gateways that take their manifest from the cluster, under a closed loop
of whole answers. One part after the other is killed for `--seconds`, and comes back. Goal: no request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import uvloop

from tests.benchmarks.cluster import Cluster, cluster
from tests.benchmarks.harness import Option, Report, benchmark, percentiles
from tests.benchmarks.load import WHOLE, Result, run

CONNECTIONS = 4


class Phase(NamedTuple):
    """A stretch of load; `begin` is called after a fifth of it."""

    name: str
    seconds: float
    begin: Callable[[], None] | None = None


def phases(parts: Cluster, seconds: float) -> list[Phase]:
    settle_s = min(10.0, seconds)
    return [
        Phase("everything up", settle_s),
        Phase("API server killed", seconds, lambda: parts.kube.stop(signal.SIGKILL)),
        Phase("API server back", settle_s, parts.kube.start),
        Phase("operator killed", seconds, parts.operator.kill),
        Phase("operator back", settle_s, parts.operator.start),
        Phase("Redis killed", seconds, parts.redis.kill),
        Phase("Redis back, empty", settle_s, parts.redis.start),
    ]


async def load(ports: list[int], seconds: float) -> list[Result]:
    return await asyncio.gather(*(run(port, WHOLE, connections=CONNECTIONS, seconds=seconds) for port in ports))


def measure(args: argparse.Namespace, report: Report) -> None:
    """The load has a thread of its own: what a phase begins must be started by the main one (see `Child`)."""
    with cluster(gateways=2) as parts, ThreadPoolExecutor(max_workers=1) as thread:
        for phase in phases(parts, args.seconds):
            running = thread.submit(lambda seconds: uvloop.run(load(parts.ports, seconds)), phase.seconds)
            if phase.begin is not None:
                time.sleep(phase.seconds / 5)
                phase.begin()
            results = running.result()
            took_ms = [ms for result in results for ms in result.took_ms()]
            failed = sum(result.bad for result in results)
            took = percentiles(took_ms, "ms")
            report.row(phase.name, seconds=phase.seconds, requests=len(took_ms), **took, failed=failed)
            report.require(not failed, f"{phase.name}: {failed} requests failed")
        parts.operator.check()


if __name__ == "__main__":
    benchmark(__file__, __doc__, measure, seconds=Option(120.0, 2.0, "how long each part is gone"))
