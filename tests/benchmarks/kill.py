"""How soon a kill switch lands: `python -m tests.benchmarks.kill [--patches 200] [--gateways 2]`.

A real API server, real gateways that watch it, and `kubectl patch`, of the pair and of its policy in turn; all on this
machine's cores, kubectl too. Every gateway is asked for a decision (`POST /v1/route`) without a pause; a kill has
landed when the first plain decision has come back from the last of them. It is counted from the moment that kubectl
says that the API server acknowledged it. Any speculative decision after a gateway's first plain one counts as bad.
First with an operator and a Redis that run, then with neither. Goal: p99 of 100 ms at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from slipstream_tools.up.processes import Child

from tests.benchmarks.gateway_openai import free_port, upstream, wait_port
from tests.benchmarks.redis_faults import RedisServer
from tests.support.kube import CRDS, KubeApiServer, install_chart

GOAL_MS = 100.0
LAND_LIMIT_S = 20.0
NAMESPACE = "canned"
OBJECTS = """
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {{name: canned}}
spec:
  model: canned
  maxDraftTokens: 6
  engine:
    kind: external
    arms:
      plain: {{protocol: openai, endpoints: ["http://127.0.0.1:{port}"], model: canned}}
      speculative: {{protocol: openai, endpoints: ["http://127.0.0.1:{port}"], model: canned}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {{name: canned}}
spec: {{pair: canned, allowClientMode: true, holdBackShare: 0}}
"""
PATHS = tuple(
    f"/apis/slipstream.dev/v1alpha1/namespaces/{NAMESPACE}/{plural}/canned"
    for plural in ("modelpairs", "speculationpolicies")
)
BODY = json.dumps({"model": "canned", "messages": [{"role": "user", "content": "Summarise this call."}]}).encode()
# What the client asks for comes after the kill switch in the order of reasons: without a kill, always speculative.
ASK = (
    b"POST /v1/route HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"x-slipstream-mode: speculative\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


class Change(NamedTuple):
    """From when on a gateway decides otherwise: when the first such answer came, by `time.monotonic`."""

    at_s: float
    speculative: bool


class Asker:
    """Asks one gateway for decisions, one after the other over one connection, and keeps the changes of its mind."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.changes: list[Change] = []
        self.asked = 0
        self._news = asyncio.Event()

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while True:
                writer.write(ASK)
                speculative = json.loads(await _body(reader))["arm"] == "speculative"
                self.asked += 1
                if not self.changes or self.changes[-1].speculative is not speculative:
                    self.changes.append(Change(time.monotonic(), speculative))
                    self._news.set()
        finally:
            writer.close()

    async def decides(self, *, speculative: bool) -> None:
        """Wait until its latest decision is the one that is meant."""
        async with asyncio.timeout(LAND_LIMIT_S):
            while not self.changes or self.changes[-1].speculative is not speculative:
                self._news.clear()
                await self._news.wait()


async def _body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"a gateway answers {head.decode()!r}")
    [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return await reader.readexactly(int(length.partition(b":")[2]))


@contextmanager
def gateway(kube: KubeApiServer, folder: Path, name: str, redis_url: str | None) -> Iterator[int]:
    """A `slipstream gateway` that takes its manifest from the cluster; its port."""
    port = free_port()
    child = Child(
        name=name,
        command=[
            *(sys.executable, "-m", "slipstream_tools.cli", "gateway", "--source", "kubernetes"),
            *("--kubeconfig", str(kube.kubeconfig())),
            *("--namespace", NAMESPACE, "--report-namespace", NAMESPACE),
            *("--snapshot", str(folder / f"{name}.snapshot"), "--port", str(port)),
            *("--conformance", "off"),  # the canned server does not pass the checks without which nothing speculates
        ],
        log_path=folder / f"{name}.log",
        env={**os.environ, **({"SLIPSTREAM_REDIS_URL": redis_url} if redis_url else {})},
    )
    try:
        wait_port(port)
        yield port
    finally:
        child.stop(timeout_s=10)


@asynccontextmanager
async def asking(ports: list[int]) -> AsyncIterator[list[Asker]]:
    askers = [Asker(port) for port in ports]
    tasks = [asyncio.create_task(asker.run()) for asker in askers]
    try:
        yield askers
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def kubectl_kill(kube: KubeApiServer, kind: str) -> float:
    """Kill by `kubectl patch`, and say when it was acknowledged, by `time.monotonic`: its log has a line for that."""
    process = await asyncio.create_subprocess_exec(
        *("kubectl", "--kubeconfig", str(kube.kubeconfig(namespace=NAMESPACE)), "-v=6"),
        *("patch", kind, "canned", "--type", "merge", "-p", '{"spec":{"killSwitch":true}}'),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(kube.folder)},
    )
    assert process.stderr is not None
    acknowledged_s, lines = 0.0, []
    async for line in process.stderr:
        lines.append(line.decode())
        if b"PATCH " in line and b" 200 " in line:
            acknowledged_s = time.monotonic()
    if await process.wait() or not acknowledged_s:
        raise RuntimeError("kubectl patch failed:\n" + "".join(lines))
    return acknowledged_s


async def measure(kube: KubeApiServer, ports: list[int], patches: int) -> tuple[list[float], int]:
    """Milliseconds of every kill until it had landed everywhere, and how often a gateway went back and forth."""
    landed_ms, bad = [], 0
    async with asking(ports) as askers:
        for number in range(patches):
            await asyncio.gather(*(asker.decides(speculative=True) for asker in askers))
            before = [len(asker.changes) for asker in askers]
            await asyncio.sleep(random.uniform(0, 0.05))  # at any moment of a gateway's own rounds
            acknowledged_s = await kubectl_kill(kube, ("modelpair", "speculationpolicy")[number % 2])
            await asyncio.gather(*(asker.decides(speculative=False) for asker in askers))
            first_s = [asker.changes[count].at_s for asker, count in zip(askers, before, strict=True)]
            landed_ms.append(max(0.0, max(first_s) - acknowledged_s) * 1e3)
            bad += sum(len(asker.changes) != count + 1 for asker, count in zip(askers, before, strict=True))
            await asyncio.to_thread(kube.client().patch, PATHS[number % 2], {"spec": {"killSwitch": None}})
    return landed_ms, bad


def row(what: str, landed_ms: list[float], bad: int) -> None:
    found = sorted(landed_ms)
    p50, p99 = found[len(found) // 2], found[min(len(found) - 1, int(len(found) * 0.99))]
    print(f"{what:30} {len(found):8} {p50:8.1f} {p99:8.1f} {found[-1]:8.1f} {bad:6}", flush=True)


@contextmanager
def operator(kube: KubeApiServer, folder: Path, redis_url: str) -> Iterator[None]:
    """A `slipstream operator` of the same namespace."""
    child = Child(
        name="the operator",
        command=[
            *(sys.executable, "-m", "slipstream_tools.cli", "operator"),
            *("--kubeconfig", str(kube.kubeconfig()), "--namespace", NAMESPACE, "--report-namespace", NAMESPACE),
            *("--host", "127.0.0.1", "--liveness-port", str(free_port()), "--metrics-port", str(free_port())),
        ],
        log_path=folder / "operator.log",
        env={**os.environ, "SLIPSTREAM_REDIS_URL": redis_url},
    )
    try:
        yield
        if (status := child.exit_status()) is not None:
            raise RuntimeError(f"the operator {status}:\n{child.log_tail()}")
    finally:
        child.stop(timeout_s=10)


def run(what: str, kube: KubeApiServer, folder: Path, options: argparse.Namespace, redis_url: str | None) -> bool:
    """Whether the goal was reached."""
    with ExitStack() as stack:
        if redis_url is not None:
            stack.enter_context(operator(kube, folder, redis_url))
        names = [f"gateway-{number}" for number in range(options.gateways)]
        ports = [stack.enter_context(gateway(kube, folder, name, redis_url)) for name in names]
        landed_ms, bad = asyncio.run(measure(kube, ports, options.patches))
    row(what, landed_ms, bad)
    return not bad and sorted(landed_ms)[min(len(landed_ms) - 1, int(len(landed_ms) * 0.99))] <= GOAL_MS


def main() -> int:
    parser = argparse.ArgumentParser(description="How soon a kill switch lands in every gateway.")
    parser.add_argument("--patches", type=int, default=200, help="in each of two rounds (%(default)s)")
    parser.add_argument("--gateways", type=int, default=2, help="gateway processes (%(default)s)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        KubeApiServer(Path(name) / "kube") as kube,
        upstream(sorted(os.sched_getaffinity(0))[-1]) as upstream_port,
    ):
        install_chart(kube, CRDS)
        kube.namespace(NAMESPACE)
        kube.client().apply_yaml(OBJECTS.format(port=upstream_port), namespace=NAMESPACE)
        print(f"{'':30} {'patches':>8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'bad':>6}", flush=True)
        redis = RedisServer(Path(name), sorted(os.sched_getaffinity(0))[-1])
        try:
            redis_url = f"redis://127.0.0.1:{redis.port}/0"
            good = run("operator and Redis running", kube, Path(name), options, redis_url)
        finally:
            redis.kill()
        good &= run("no operator, no Redis", kube, Path(name), options, None)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
