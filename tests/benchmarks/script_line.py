"""What one exchange with Redis costs a gateway: redis-py's pipeline, and the line that limits go through: `python -m
tests.benchmarks.script_line [--rounds 2000]`.

An exchange settles some requests and lets as many in. Both ways go to the same Redis in turns; a figure is the median
of five stretches, in µs of this process's CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from redis.asyncio import Redis
from slipstream_core.redis.limit_scripts import ADMIT, SETTLE, Command, ScriptLine, leases_key, limits_key

from tests.benchmarks.gateway_openai import free_port
from tests.support.redis_server import RedisServer

_STRETCHES = 5


def exchange(requests: int) -> list[Command]:
    settle = Command(SETTLE, "key", (1_000_000_000, -50, 0, 123_456_789, 20_000, "lease-1"))
    admit = Command(ADMIT, "key", (10_000_000, 1_000_000_000, 1000, 0, 120, 0, "lease-1", 30_000_000))
    return [*[settle] * requests, *[admit] * requests]


async def piped(redis: Redis, commands: list[Command]) -> list[Any]:
    pipeline = redis.pipeline(transaction=False)
    for script, key_id, arguments in commands:
        pipeline.execute_command("EVALSHA", script.sha, 2, limits_key(key_id), leases_key(key_id), *arguments)
    replies: list[Any] = await pipeline.execute(raise_on_error=False)
    return replies


async def cpu_us(once: Callable[[], Awaitable[object]], rounds: int) -> float:
    began_s = time.thread_time()
    for _ in range(rounds):
        await once()
    return 1e6 * (time.thread_time() - began_s) / rounds


async def compare(url: str, rounds: int) -> None:
    redis, line = Redis.from_url(url, protocol=2), ScriptLine(url, (ADMIT, SETTLE))
    await line.connect()
    for requests in (1, 16):
        commands = exchange(requests)
        ways = {"pipeline": lambda c=commands: piped(redis, c), "line": lambda c=commands: line.call(c)}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(_STRETCHES):
            for name, once in ways.items():
                found[name].append(await cpu_us(once, rounds // requests))
        pipeline_us, line_us = (statistics.median(values) for values in found.values())
        ratio = line_us / pipeline_us
        print(f"{requests:3} requests: pipeline {pipeline_us:6.0f} µs, line {line_us:6.0f} µs: x {ratio:.2f}")
    await line.disconnect()
    await redis.aclose()


def main() -> int:
    parser = argparse.ArgumentParser(description="What one exchange with Redis costs a gateway.")
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), free_port())
        try:
            uvloop.run(compare(server.url, options.rounds))
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
