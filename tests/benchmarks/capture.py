"""What capture costs requests: `python -m tests.benchmarks.capture [--rounds 15] [--requests 400]`.

Two gateways in front of one server that costs nothing, one of them with every answer captured, measured by turns. The
gateways have one core, load, server and capture writer the other, and requests come one after the other with pauses: at
full speed they would leave the writer no processor. Goals for each request: at most 15 µs of the gateway's CPU, and
0.02 ms of the median.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
import uvloop
from slipstream_gateway.capture.store import CaptureStore

from tests.benchmarks.gateway_load import Client
from tests.benchmarks.gateway_openai import MANIFEST, cpu_s, free_port, request_bytes, upstream, wait_port
from tests.support.polling import eventually

PAUSE_S = 0.002
STREAM_TOKENS = 64
REQUESTS = {
    "whole answer": (request_bytes(model="canned", stream=False, max_tokens=64), 0),
    f"stream of {STREAM_TOKENS} chunks": (
        request_bytes(model="canned", stream=True, max_tokens=STREAM_TOKENS),
        STREAM_TOKENS,
    ),
}


class Cost(NamedTuple):
    """Of one request, in µs of the gateway's CPU and ms of the median."""

    cpu_us: float
    p50_ms: float


class Served(NamedTuple):
    port: int
    gateway: psutil.Process


@contextmanager
def gateway(upstream_port: int, cores: Sequence[int], folder: Path, capture: str) -> Iterator[Served]:
    """With answers captured below `folder` where `capture` has the policy's settings."""
    folder.mkdir()
    manifest, port = folder / "pair.yaml", free_port()
    manifest.write_text(MANIFEST.format(port=upstream_port).replace("pair: canned}", f"pair: canned{capture}}}"))
    command = [sys.executable, "-m", "slipstream_tools.cli", "gateway", "-f", str(manifest), "--port", str(port)]
    options = ["--capture-store", str(folder / "captures")] if capture else []
    process = psutil.Process(subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL).pid)
    try:
        wait_port(port)
        if capture:
            eventually(process.children, "the capture writer")
        process.cpu_affinity([cores[0]])
        for child in process.children():
            child.cpu_affinity([cores[-1]])
        yield Served(port, process)
    finally:
        if process.is_running():
            process.terminate()
            process.wait(40)


def cpu_us(process: psutil.Process) -> float:
    """The time on a processor of the main thread, which does all work of a request. The kernel counts it in ns."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1000


async def compare(off: Served, on: Served, name: str, *, rounds: int, requests: int) -> None:
    """Prints what capture adds. Each request is asked of one gateway, and then of the other."""
    request, tokens = REQUESTS[name]
    loop, costs = asyncio.get_running_loop(), []
    clients = [(await loop.create_connection(Client, "127.0.0.1", served.port))[1] for served in (off, on)]
    for turn in range(rounds + 1):
        used_us = [cpu_us(served.gateway) for served in (off, on)]
        took_ms: list[list[float]] = [[], []]
        for _ in range(requests):
            for which, client in enumerate(clients):
                answer = await client.ask(request)
                if (answer.status, answer.tokens) != (200, tokens):
                    raise RuntimeError(f"{answer} is not whole")
                took_ms[which].append(1e3 * answer.seconds)
                await asyncio.sleep(PAUSE_S)
        used_us = [cpu_us(served.gateway) - before for served, before in zip((off, on), used_us, strict=True)]
        if turn:  # the first one warms up
            costs.append([Cost(used / requests, median(took)) for used, took in zip(used_us, took_ms, strict=True)])
    for client in clients:
        client.close()
    for unit, pick in (("µs of CPU", lambda cost: cost.cpu_us), ("ms, p50", lambda cost: cost.p50_ms)):
        added = sorted(pick(with_it) - pick(without) for without, with_it in costs)
        low, high = added[len(added) // 8], added[-1 - len(added) // 8]
        before = median(pick(without) for without, _ in costs)
        print(f"{name:22} {before:10.3f} {median(added):+10.3f} ({low:+.3f} to {high:+.3f}) {unit}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="of each (%(default)s)")
    parser.add_argument("--requests", type=int, default=400, help="per round and gateway (%(default)s)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream_port = stack.enter_context(upstream(cores[-1]))
        off = stack.enter_context(gateway(upstream_port, cores, folder / "off", ""))
        on = stack.enter_context(gateway(upstream_port, cores, folder / "on", ", capture: {share: 1}"))
        [writer] = on.gateway.children()
        os.sched_setaffinity(0, {cores[-1]})
        print(f"{'':22} {'without':>10} {'added by capture, median (three quarters of the rounds)'}")
        for name in REQUESTS:
            uvloop.run(compare(off, on, name, rounds=options.rounds, requests=options.requests))
        used_s = cpu_s(writer)
        on.gateway.terminate()
        on.gateway.wait(60)
        store = CaptureStore.at(str(folder / "on" / "captures"))
        rows = sum(store.read(file, ("id",)).num_rows for file in store.files())
        size = sum(file.size_bytes for file in store.files())
        cost_us, each_bytes = 1e6 * used_s / max(rows, 1), size / max(rows, 1)
        print(f"the writer: {rows} answers, {cost_us:.0f} µs of its CPU and {each_bytes:.0f} bytes each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
