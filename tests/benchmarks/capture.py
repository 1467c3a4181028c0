"""What capture costs requests: `python -m tests.benchmarks.capture [--blocks 10] [--rounds 3] [--requests 400]`.

Two gateways in front of one server that costs nothing, one of them with every answer captured, measured by turns, and
started anew for each block. The gateways have one core, load, server and capture writer the other, and requests come
one after the other with pauses: at full speed they would leave the writer no processor. Goals for each request: at most
15 µs of the gateway's CPU, and 0.02 ms of the median.
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
from statistics import mean, median, stdev
from typing import NamedTuple

import psutil
import uvloop
from scipy.stats import t
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


async def compare(off: Served, on: Served, name: str, *, rounds: int, requests: int) -> list[tuple[Cost, Cost]]:
    """The costs of each round, without capture and with it. Each request is asked of both gateways, by turns first of
    the one and of the other."""
    request, tokens = REQUESTS[name]
    loop, costs = asyncio.get_running_loop(), []
    clients = [(await loop.create_connection(Client, "127.0.0.1", served.port))[1] for served in (off, on)]
    for turn in range(rounds + 1):
        used_us = [cpu_us(served.gateway) for served in (off, on)]
        took_ms: list[list[float]] = [[], []]
        for number in range(requests):
            for which in (0, 1) if number % 2 else (1, 0):
                answer = await clients[which].ask(request)
                if (answer.status, answer.tokens) != (200, tokens):
                    raise RuntimeError(f"{answer} is not whole")
                took_ms[which].append(1e3 * answer.seconds)
                await asyncio.sleep(PAUSE_S)
        used_us = [cpu_us(served.gateway) - before for served, before in zip((off, on), used_us, strict=True)]
        if turn:  # the first one warms up
            without, with_it = (
                Cost(used / requests, median(took)) for used, took in zip(used_us, took_ms, strict=True)
            )
            costs.append((without, with_it))
    for client in clients:
        client.close()
    return costs


def tell(name: str, blocks: Sequence[Sequence[tuple[Cost, Cost]]]) -> None:
    """Prints what capture adds: the mean of the blocks' medians, and its 95 % interval by Student's t."""
    for unit, pick in (("µs of CPU", lambda cost: cost.cpu_us), ("ms, p50", lambda cost: cost.p50_ms)):
        added = [median(pick(with_it) - pick(without) for without, with_it in block) for block in blocks]
        before = median(pick(without) for block in blocks for without, _ in block)
        half = t.ppf(0.975, len(added) - 1) * stdev(added) / len(added) ** 0.5
        print(f"{name:22} {before:10.3f} {mean(added):+10.3f} ± {half:.3f} {unit}", flush=True)


def run_block(folder: Path, upstream_port: int, *, rounds: int, requests: int) -> dict[str, list[tuple[Cost, Cost]]]:
    """The costs in two new gateways: two processes of the same program differ by up to 20 µs for each request."""
    cores = sorted(os.sched_getaffinity(0))
    folder.mkdir()
    with ExitStack() as stack:
        off = stack.enter_context(gateway(upstream_port, cores, folder / "off", ""))
        on = stack.enter_context(gateway(upstream_port, cores, folder / "on", ", capture: {share: 1}"))
        [writer] = on.gateway.children()
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cores[-1]})
        costs = {name: uvloop.run(compare(off, on, name, rounds=rounds, requests=requests)) for name in REQUESTS}
        os.sched_setaffinity(0, mine)
        used_s = cpu_s(writer)
        on.gateway.terminate()
        on.gateway.wait(60)
    store = CaptureStore.at(str(folder / "on" / "captures"))
    rows = sum(store.read(file, ("id",)).num_rows for file in store.files())
    size = sum(file.size_bytes for file in store.files())
    if rows != len(REQUESTS) * (rounds + 1) * requests:
        raise RuntimeError(f"{rows} answers were captured")
    print(f"the writer: {rows} answers, {1e6 * used_s / rows:.0f} µs of its CPU and {size / rows:.0f} bytes each")
    return costs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10, help="with new gateways each (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each block (%(default)s)")
    parser.add_argument("--requests", type=int, default=400, help="per round and gateway (%(default)s)")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream_port = stack.enter_context(upstream(max(os.sched_getaffinity(0))))
        blocks = [
            run_block(folder / str(number), upstream_port, rounds=options.rounds, requests=options.requests)
            for number in range(options.blocks)
        ]
    print(f"{'':22} {'without':>10} {'added by capture, mean and its 95 % interval'}")
    for name in REQUESTS:
        tell(name, [block[name] for block in blocks])
    return 0


if __name__ == "__main__":
    sys.exit(main())
