"""What sharing outcomes through Redis costs, and what a Redis that dies under load does to requests.

The gateway on one core; load, upstream and Redis on another. Each phase is the same closed loop of whole answers; in
the middle of some, something happens to Redis. Compare the p99 with a fault to the p99 without one: several rounds show
the noise. Goal: no request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop
from slipstream_core.observation import Observation, Subject
from slipstream_core.redis.redis_store import RedisStore
from slipstream_core.types import Arm, Reason

from tests.benchmarks import canned
from tests.benchmarks.harness import Option, Report, benchmark, percentiles
from tests.benchmarks.load import WHOLE, run
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer

CONNECTIONS = 8
RATE = 2_000
BURST_S = 0.01
LOST_S = 60.0


class Phase(NamedTuple):
    """A stretch of load, and what happens in its middle."""

    name: str
    event: Callable[[], None] | None = None


async def middle(phase: Phase, seconds: float) -> None:
    """The event of a phase of `seconds`."""
    await asyncio.sleep(seconds / 2)
    if phase.event is not None:
        phase.event()


async def load(port: int, worker: psutil.Process, phases: list[Phase], seconds: float, report: Report) -> None:
    await run(port, WHOLE, connections=CONNECTIONS, seconds=min(1.0, seconds))
    for phase in phases:
        used_s = canned.cpu_s(worker)
        _, result = await asyncio.gather(
            middle(phase, seconds), run(port, WHOLE, connections=CONNECTIONS, seconds=seconds)
        )
        used_us = 1e6 * (canned.cpu_s(worker) - used_s) / max(len(result.answers), 1)
        took = percentiles(result.took_ms(), "ms")
        report.row(phase.name, answers_per_s=result.per_s, **took, cpu_us=used_us, failed=result.bad)
        report.require(not result.bad, f"{phase.name}: {result.bad} requests failed")


def faults(folder: Path, redis: RedisServer, args: argparse.Namespace, report: Report) -> None:
    phases = [
        Phase("Redis up"),
        Phase("killed in the middle", redis.kill),
        Phase("away"),
        Phase("back, empty, in the middle", redis.start),
        Phase("up"),
        Phase("hangs from the middle on", redis.pause),
        Phase("hangs"),
        Phase("continues in the middle", redis.resume),
    ]
    with canned.upstream() as upstream_port:
        manifest = canned.manifest(folder, upstream_port)
        for name, options, todo in (
            ("alone", (), [Phase("without Redis")]),
            ("shared", ("--redis", redis.url), phases * args.rounds),
        ):
            with canned.gateway(folder, *manifest, "--log-level", "info", *options, name=name) as (port, worker):
                uvloop.run(load(port, worker, todo, args.seconds, report))
    for line in (folder / "shared.log").read_text().splitlines():
        if "outcomes are" in line:
            report.note(line)


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
    """An `apply` that sets an event when it was called often enough."""

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
        with suppress(asyncio.CancelledError):
            await task
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


async def cost(url: str, seconds: float, report: Report) -> None:
    """The CPU time of this process for outcomes that one store writes and another one reads."""
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
    report.row("an idle store", cpu_ms_per_s=1e3 * idle_s / seconds)
    report.row(f"append and write, {RATE}/s", cpu_us_per_outcome=1e6 * write_s / written, outcomes=written)
    report.row("read what a stream holds", cpu_us_per_outcome=1e6 * read_s / written, outcomes=written)


def measure(args: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as name:
        os.sched_setaffinity(0, {canned.OTHER_CORE})  # Redis inherits it
        redis = RedisServer(Path(name), *lasting_ports(1))
        try:
            uvloop.run(cost(redis.url, args.seconds, report))
            faults(Path(name), redis, args, report)
        finally:
            redis.stop()


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        seconds=Option(4.0, 0.4, "per phase"),
        rounds=Option(2, 1, "of all phases"),
    )
