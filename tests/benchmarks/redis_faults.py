"""What sharing outcomes through Redis costs, and what a Redis that dies under load does to requests: `python -m
tests.benchmarks.redis_faults [--seconds 4] [--rounds 2]`.

The gateway on one core; load, upstream and Redis on another. Each phase is the same closed loop of whole answers; in
the middle of some, something happens to Redis. Several rounds, so that the noise shows: p99 with a fault is to be
read beside p99 without one. Goal: no request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
import uvloop
from slipstream_core.observation import Observation, Subject
from slipstream_core.redis.redis_store import RedisStore
from slipstream_core.types import Arm, Reason

from tests.benchmarks.gateway_load import run
from tests.benchmarks.gateway_openai import MANIFEST, WHOLE, cpu_s, free_port, milliseconds, upstream, wait_port

CONNECTIONS = 8
RATE = 2_000
BURST_S = 0.01
LOST_S = 10.0


class RedisServer:
    """A `redis-server` of the benchmark's own."""

    def __init__(self, folder: Path, core: int) -> None:
        self.port = free_port()
        self._folder, self._core = folder, core
        self.start()

    def start(self) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise SystemExit("redis-server was not found: install Debian's package redis-server")
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder))
        self._process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
        os.sched_setaffinity(self._process.pid, {self._core})
        wait_port(self.port)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Phase(NamedTuple):
    """A stretch of load, and what happens in its middle; `fault`: something is wrong with Redis."""

    name: str
    fault: bool
    event: Callable[[], None] | None = None


@contextmanager
def gateway(upstream_port: int, core: int, folder: Path, *options: str) -> Iterator[tuple[int, psutil.Process]]:
    manifest, port = folder / "pair.yaml", free_port()
    manifest.write_text(MANIFEST.format(port=upstream_port))
    command = [sys.executable, "-m", "slipstream_tools.cli", "gateway", "-f", str(manifest), "--port", str(port)]
    with (folder / "gateway.log").open("ab") as log:
        process = subprocess.Popen([*command, "--log-level", "info", *options], stderr=log)
    try:
        os.sched_setaffinity(process.pid, {core})
        wait_port(port)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(40)


async def measure(port: int, worker: psutil.Process, phases: list[Phase], seconds: float) -> int:
    """Prints a line per phase, and p99 over them; returns the number of answers that were not whole."""
    bad, loop = 0, asyncio.get_running_loop()
    p99_ms: dict[bool, list[float]] = {False: [], True: []}
    await run(port, WHOLE, connections=CONNECTIONS, seconds=1.0)
    for phase in phases:
        used_s = cpu_s(worker)
        if phase.event is not None:
            loop.call_later(seconds / 2, phase.event)
        result = await run(port, WHOLE, connections=CONNECTIONS, seconds=seconds)
        used_us = 1e6 * (cpu_s(worker) - used_s) / max(len(result.answers), 1)
        rate = len(result.answers) / result.seconds
        figures = f"{rate:10.0f} {milliseconds(result, 0.5):8.2f} {milliseconds(result, 0.99):8.2f}"
        longest_ms = 1e3 * max(answer.seconds for answer in result.answers)
        print(f"{phase.name:28} {figures} {longest_ms:8.1f} {used_us:8.0f} {result.bad:7}", flush=True)
        p99_ms[phase.fault].append(milliseconds(result, 0.99))
        bad += result.bad
    for fault, found in p99_ms.items():
        if found:
            name = "p99 ms, faults" if fault else "p99 ms, no fault"
            print(f"{name:28} median {median(found):.2f}, {min(found):.2f} to {max(found):.2f} in {len(found)} phases")
    return bad


def faults(folder: Path, seconds: float, rounds: int) -> int:
    cores = sorted(os.sched_getaffinity(0))
    header = f"{'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'CPU µs':>8} {'failed':>7}"
    print(f"{'Redis':28} {header}", flush=True)
    redis = RedisServer(folder, cores[-1])
    phases = [
        Phase("up", False),
        Phase("killed in the middle", True, redis.kill),
        Phase("away", True),
        Phase("back, empty, in the middle", True, redis.start),
        Phase("up", False),
        Phase("hangs from the middle on", True, lambda: redis.signal(signal.SIGSTOP)),
        Phase("hangs", True),
        Phase("goes on in the middle", True, lambda: redis.signal(signal.SIGCONT)),
    ]
    try:
        with upstream(cores[-1]) as upstream_port:
            os.sched_setaffinity(0, {cores[-1]})
            with gateway(upstream_port, cores[0], folder) as (port, worker):
                bad = uvloop.run(measure(port, worker, [Phase("without Redis", False)], seconds))
            shared = ("--redis", f"redis://127.0.0.1:{redis.port}/0")
            with gateway(upstream_port, cores[0], folder, *shared) as (port, worker):
                bad += uvloop.run(measure(port, worker, phases * rounds, seconds))
    finally:
        redis.kill()
    lines = [line for line in (folder / "gateway.log").read_text().splitlines() if "outcomes are" in line]
    print("\nwhat the gateway's log says of it:", *lines, sep="\n  ")
    return bad


def observation() -> Observation:
    subject = Subject(pair="canned", fingerprint="0" * 16, source="1" * 16, cold_class="open_chat/short", temperature=0)
    return Observation(
        subject=subject,
        request_class="open_chat/short",
        arm=Arm.SPECULATIVE,
        reason=Reason.SPECULATION_PAYS,
        draft_length=6,
        pool="http://127.0.0.1:8000",
        status="ok",
        prompt_tokens=200,
        output_tokens=120,
        drafted=140,
        accepted=90,
        rejections=20,
        steps=30,
        ttft_s=0.0312,
        e2e_s=1.3334,
        load=3.2,
        batch_draft_length=3.3,
        price_per_gpu_hour=2.5,
        time_s=1.7e9,
    )


class Counter:
    """An `apply` that says when it was called often enough."""

    def __init__(self, enough: int) -> None:
        self.count = 0
        self.done = asyncio.Event()
        self._enough = enough

    def __call__(self, observed: Observation) -> None:
        self.count += 1
        if self.count >= self._enough:
            self.done.set()


@asynccontextmanager
async def running(url: str, apply: Counter) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, pairs=lambda: ("canned",))
    task = asyncio.create_task(store.run(apply))
    try:
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.aclose()


async def append(to: list[RedisStore], observed: Observation, seconds: float) -> int:
    """`RATE` outcomes a second to each store; returns how many."""
    written, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        for store in to:
            for _ in range(int(RATE * BURST_S)):
                store.append(observed)
                written += 1
        await asyncio.sleep(BURST_S)
    return written


async def cost(url: str, seconds: float) -> None:
    """Prints the CPU time of this process for outcomes that one store writes and another one reads."""
    start_s = time.process_time()
    async with running(url, Counter(1)):
        await asyncio.sleep(seconds)
        idle_s = time.process_time() - start_s
    start_s = time.process_time()
    await append([], observation(), seconds)
    loop_s = time.process_time() - start_s
    async with running(url, Counter(1)) as store:
        start_s = time.process_time()
        written = await append([store], observation(), seconds)
        write_s = time.process_time() - start_s - loop_s - idle_s
    start_s, counter = time.process_time(), Counter(written)
    async with running(url, counter), asyncio.timeout(LOST_S):
        await counter.done.wait()
    read_s = time.process_time() - start_s
    print(f"an idle store:                {1e3 * idle_s / seconds:6.1f} ms of CPU per second")
    print(f"append and write, {RATE}/s:   {1e6 * write_s / written:6.1f} µs of CPU per outcome ({written})")
    print(f"read of what a stream holds:  {1e6 * read_s / written:6.1f} µs of CPU per outcome\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Sharing outcomes through Redis: its cost, and faults under load.")
    parser.add_argument("--seconds", type=float, default=4.0, help="per phase (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of all phases (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        redis = RedisServer(Path(folder), sorted(os.sched_getaffinity(0))[-1])
        try:
            uvloop.run(cost(f"redis://127.0.0.1:{redis.port}/0", options.seconds))
        finally:
            redis.kill()
        return 1 if faults(Path(folder), options.seconds, options.rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
