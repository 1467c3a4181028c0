"""What the gateway adds in front of an OpenAI-compatible server that costs nothing: `python -m
tests.benchmarks.gateway_openai [--seconds 3] [--minutes 10]`.

Gateway alone on one core, load and server on another. Every figure stands beside the same load without the gateway,
measured just before it; only differences and ratios within one run mean anything. `--minutes` adds a soak that
watches the worker's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import uvloop

from tests.benchmarks.gateway_load import Result, percentile, request_bytes, run
from tests.benchmarks.gateway_mock import PACED_TOKENS, serve

MANIFEST = """
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
spec: {{pair: canned}}
"""
FLOOD_TOKENS = 256
WHOLE = request_bytes(model="canned", stream=False, max_tokens=64)
FLOOD = request_bytes(model="canned", stream=True, max_tokens=FLOOD_TOKENS)
PACED = request_bytes(model="canned", stream=True, max_tokens=PACED_TOKENS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


@contextmanager
def upstream(core: int) -> Iterator[int]:
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True)
    process.start()
    try:
        wait_port(port)
        os.sched_setaffinity(process.pid or 0, {core})
        yield port
    finally:
        process.terminate()
        process.join()


@contextmanager
def gateway(
    upstream_port: int, core: int, folder: Path, *, options: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Iterator[tuple[int, psutil.Process]]:
    """`env`: in place of this process's own."""
    manifest, port = folder / "pair.yaml", free_port()
    manifest.write_text(MANIFEST.format(port=upstream_port))
    serve_it = [sys.executable, "-m", "slipstream_tools.cli", "gateway", "-f", str(manifest), "--port", str(port)]
    process = subprocess.Popen([*serve_it, *options], stderr=subprocess.DEVNULL, env=env)
    try:
        os.sched_setaffinity(process.pid, {core})
        wait_port(port)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(40)


def row(what: str, direct: str, through: str, added: str, goal: str, bad: int) -> None:
    print(f"{what:42} {direct:>10} {through:>10} {added:>12}   {goal:22} bad {bad}", flush=True)


def milliseconds(result: Result, share: float) -> float:
    return 1e3 * percentile([answer.seconds for answer in result.answers], share)


def gap_ms(result: Result, share: float) -> float:
    return 1e3 * percentile([gap for answer in result.answers for gap in answer.gaps_s], share)


def chunks_per_s(result: Result) -> float:
    return sum(answer.tokens for answer in result.answers) / result.seconds


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def measure(direct_port: int, port: int, worker: psutil.Process, seconds: float) -> int:
    """Prints the table; returns the number of answers that were not whole."""
    print(f"{'':42} {'direct':>10} {'gateway':>10} {'added':>12}   goal", flush=True)
    bad = 0
    for connections, goal in ((1, "p50 +0.4 ms at most"), (32, "4,000 requests/s")):
        await run(port, WHOLE, connections=connections, seconds=0.5)
        a = await run(direct_port, WHOLE, connections=connections, seconds=seconds)
        used_s = cpu_s(worker)
        b = await run(port, WHOLE, connections=connections, seconds=seconds)
        used_us = 1e6 * (cpu_s(worker) - used_s) / max(len(b.answers), 1)
        rates = len(a.answers) / a.seconds, len(b.answers) / b.seconds
        row(f"whole, {connections} connections: requests/s", f"{rates[0]:.0f}", f"{rates[1]:.0f}", "", goal, b.bad)
        p50 = milliseconds(a, 0.5), milliseconds(b, 0.5)
        row("  p50 ms", f"{p50[0]:.3f}", f"{p50[1]:.3f}", f"+{p50[1] - p50[0]:.3f} ms", "", b.bad)
        row("  gateway's CPU µs per request", "", f"{used_us:.0f}", "", "", b.bad)
        bad += b.bad
    for name, request, tokens, connections, goal in (
        ("flood of 256 tokens, 16 streams", FLOOD, FLOOD_TOKENS, 16, "80,000 chunks/s"),
        ("paced 20 ms, 64 streams", PACED, PACED_TOKENS, 64, "gap p99 +2 ms at most"),
    ):
        rounds = 8 if tokens == FLOOD_TOKENS else 2
        a = await run(direct_port, request, connections=connections, seconds=0, rounds=rounds, tokens=tokens)
        b = await run(port, request, connections=connections, seconds=0, rounds=rounds, tokens=tokens)
        if tokens == FLOOD_TOKENS:
            row(f"{name}: chunks/s", f"{chunks_per_s(a):.0f}", f"{chunks_per_s(b):.0f}", "", goal, b.bad)
        else:
            p99 = gap_ms(a, 0.99), gap_ms(b, 0.99)
            row(f"{name}: gap p99 ms", f"{p99[0]:.2f}", f"{p99[1]:.2f}", f"{p99[1] - p99[0]:+.2f} ms", goal, b.bad)
        bad += b.bad
    return bad


async def soak(port: int, worker: psutil.Process, minutes: float) -> int:
    """Mixed load; prints the worker's memory as it goes. Returns answers that were not whole."""
    bad, end = 0, time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        whole, flood = await asyncio.gather(
            run(port, WHOLE, connections=8, seconds=10),
            run(port, FLOOD, connections=4, seconds=10, tokens=FLOOD_TOKENS),
        )
        bad += whole.bad + flood.bad
        left = max(0.0, end - time.monotonic()) / 60
        count = len(whole.answers) + len(flood.answers)
        print(f"soak: {left:5.1f} min left, {count} answers, {worker.memory_info().rss / 2**20:.1f} MB", flush=True)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description="What the gateway adds in front of an OpenAI-compatible server.")
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure of whole answers (%(default)s)")
    parser.add_argument("--minutes", type=float, default=0.0, help="length of the soak (%(default)s)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory() as folder,
        upstream(cores[-1]) as direct_port,
        gateway(direct_port, cores[0], Path(folder)) as (port, worker),
    ):
        os.sched_setaffinity(0, {cores[-1]})
        bad = uvloop.run(measure(direct_port, port, worker, options.seconds))
        print(f"worker memory after the run: {worker.memory_info().rss / 2**20:.0f} MB (goal: 150 MB at most)")
        if options.minutes:
            bad += uvloop.run(soak(port, worker, options.minutes))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
