"""How soon a kill switch lands.

A real API server, real gateways that watch it, and `kubectl patch`, of the pair and of its policy in turn; all on this
machine's cores, kubectl too. Every gateway is asked for a decision (`POST /v1/route`) without a pause. A kill has
landed when the first plain decision has come back from the last gateway. The time begins when kubectl logs the API
server's answer. A speculative decision after a gateway's first plain one counts as bad. First with an operator and a
Redis that run, then without either. Then kills at the admin path of each gateway, from the first byte: the API
server hangs (SIGSTOP), the folder of the manifest is full, or it is read-only (both are mounts, which take root). Goal:
p99 of 100 ms at most, no kill refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.benchmarks import canned
from tests.benchmarks.cluster import NAMESPACE, SPECULATES, cluster
from tests.benchmarks.harness import Option, Report, benchmark, percentiles
from tests.support.kube import KubeApiServer
from tests.support.polling import PATIENCE_S

PATHS = tuple(
    f"/apis/slipstream.dev/v1alpha1/namespaces/{NAMESPACE}/{plural}/canned"
    for plural in ("modelpairs", "speculationpolicies")
)
BODY = json.dumps({"model": "canned", "messages": [{"role": "user", "content": "Summarise this call."}]}).encode()
# The client's mode comes after the kill switch in the order of reasons: without a kill, always speculative.
ASK = (
    b"POST /v1/route HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"x-slipstream-mode: speculative\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


Kill = Callable[[int], Awaitable[float]]
"""Kills for the n-th time, and returns when that began, by `time.monotonic`."""
Unkill = Callable[[int], Awaitable[None]]


class Change(NamedTuple):
    """The first decision of a new kind, by `time.monotonic`."""

    at_s: float
    speculative: bool


class Asker:
    """Asks one gateway for decisions, one after the other over one connection, and keeps their changes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.changes: list[Change] = []
        self._news = asyncio.Event()

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while True:
                writer.write(ASK)
                speculative = json.loads(await _body(reader))["arm"] == "speculative"
                if not self.changes or self.changes[-1].speculative is not speculative:
                    self.changes.append(Change(time.monotonic(), speculative))
                    self._news.set()
        finally:
            writer.close()

    async def decides(self, *, speculative: bool) -> None:
        """Waits until its latest decision is `speculative`."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.changes or self.changes[-1].speculative is not speculative:
                self._news.clear()
                await self._news.wait()


async def _body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"a gateway answers {head.decode()!r}")
    [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return await reader.readexactly(int(length.partition(b":")[2]))


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
    """Kills by `kubectl patch`; returns when the API server acknowledged it, by `time.monotonic`."""
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


async def kills(ports: list[int], times: int, kill: Kill, unkill: Unkill) -> tuple[list[float], int]:
    """Milliseconds until each kill had landed everywhere, and how often a gateway went back and forth."""
    landed_ms, bad = [], 0
    async with asking(ports) as askers:
        for number in range(times):
            await asyncio.gather(*(asker.decides(speculative=True) for asker in askers))
            before = [len(asker.changes) for asker in askers]
            await asyncio.sleep(random.uniform(0, 0.05))  # at any moment of a gateway's own rounds
            begun_s = await kill(number)
            await asyncio.gather(*(asker.decides(speculative=False) for asker in askers))
            first_s = [asker.changes[count].at_s for asker, count in zip(askers, before, strict=True)]
            landed_ms.append(max(0.0, max(first_s) - begun_s) * 1e3)
            bad += sum(len(asker.changes) != count + 1 for asker, count in zip(askers, before, strict=True))
            await unkill(number)
    return landed_ms, bad


async def patches(kube: KubeApiServer, ports: list[int], times: int) -> tuple[list[float], int]:
    """Kills by `kubectl patch`."""

    async def unkill(number: int) -> None:
        await asyncio.to_thread(kube.client().patch, PATHS[number % 2], {"spec": {"killSwitch": None}})

    kinds = ("modelpair", "speculationpolicy")
    return await kills(ports, times, lambda number: kubectl_kill(kube, kinds[number % 2]), unkill)


async def own_kills(ports: list[int], times: int, targets: list[str]) -> tuple[list[float], int]:
    """Kills at `targets`, the admin path of each gateway."""
    async with httpx.AsyncClient(timeout=PATIENCE_S, headers={"x-slipstream-console": "1"}) as http:

        async def turn(method: str) -> float:
            begun_s = time.monotonic()
            answers = await asyncio.gather(*(http.request(method, url, json={"by": "Ada"}) for url in targets))
            for answer in answers:
                answer.raise_for_status()
            return begun_s

        async def unkill(number: int) -> None:
            await turn("DELETE")

        await turn("POST")  # the client's imports and connections belong to no kill
        await turn("DELETE")
        return await kills(ports, times, lambda number: turn("POST"), unkill)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Lets `folder` be a file system of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def unwritable(full: bool) -> Iterator[list[int]]:
    """The port of a gateway whose manifest lies in a folder that is full, or read-only."""
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = base / "manifest"
        folder.mkdir()
        stack.enter_context(mounted(folder, "size=64k"))
        options = canned.manifest(folder, stack.enter_context(canned.upstream()), SPECULATES)
        if full:
            with contextlib.suppress(OSError), (folder / "rest").open("wb", buffering=0) as rest:
                while rest.write(bytes(4096)):
                    pass
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        port, _ = stack.enter_context(canned.gateway(base, *options, "--conformance", "off", core=None))
        yield [port]


def measure(args: argparse.Namespace, report: Report) -> None:
    def row(name: str, landed_ms: list[float], bad: int) -> None:
        report.row(name, kills=len(landed_ms), **percentiles(landed_ms, "ms"), bad=bad)
        report.require(not bad, f"{name}: {bad} decisions were speculative after a plain one")

    with cluster(args.gateways) as parts:
        row("operator and Redis running", *asyncio.run(patches(parts.kube, parts.ports, args.patches)))
        status = parts.operator.exit_status()
        report.require(status is None, f"the operator {status}")
        os.kill(parts.operator.pid, signal.SIGKILL)
        parts.redis.kill()
        row("no operator, no Redis", *asyncio.run(patches(parts.kube, parts.ports, args.patches)))
        parts.kube.halt()
        targets = [f"http://127.0.0.1:{port}/admin/gateway-kills/{NAMESPACE}/canned" for port in parts.admin_ports]
        row("API server hangs, own kills", *asyncio.run(own_kills(parts.ports, args.patches, targets)))
        parts.kube.resume()
    for name, full in (("full folder, own kills", True), ("read-only folder, own kills", False)):
        with unwritable(full) as ports:
            targets = [f"http://127.0.0.1:{port}/admin/kills/canned" for port in ports]
            row(name, *asyncio.run(own_kills(ports, args.patches, targets)))


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        patches=Option(200, 2, "kills in each of five rounds"),
        gateways=Option(2, 2, "gateway processes"),
    )
