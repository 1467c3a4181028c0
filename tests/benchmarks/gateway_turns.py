"""What this version costs beside an earlier one, bare and with everything on: `python -m tests.benchmarks.gateway_turns
--against FOLDER [--rounds 8] [--seconds 2]`.

FOLDER is a checkout of the earlier version. The gateways stand side by side on one core, load and server on another,
and are asked in turns, so that whatever else the machine does meets all of them. Goal: with everything on – keys,
limits by Redis, audit log – at most 15 % worse than the earlier version, by rate and by latency. A figure is the median
of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop

from tests.benchmarks.gateway_load import request_bytes, run
from tests.benchmarks.gateway_openai import (
    FLOOD_TOKENS,
    chunks_per_s,
    cpu_s,
    free_port,
    gateway,
    milliseconds,
    upstream,
)
from tests.support.redis_server import RedisServer

_LIMITS = ("--requests-per-minute", "10000000", "--tokens-per-minute", "1000000000", "--concurrent", "1000")


class Standing(NamedTuple):
    """One gateway of the comparison, and the key that opens it."""

    port: int
    worker: psutil.Process
    key: str = ""


@contextmanager
def everything_on(upstream_port: int, core: int, folder: Path) -> Iterator[Standing]:
    keys = folder / "keys.json"
    command = [sys.executable, "-m", "slipstream_tools.cli", "keys", "create", "-f", str(keys), *_LIMITS]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    key = next(word for word in made.stdout.split() if word.startswith("sk-"))
    redis = RedisServer(folder, free_port())
    try:
        options = ["--keys", str(keys), "--redis", redis.url, "--audit-log", str(folder / "audit.jsonl")]
        with gateway(upstream_port, core, folder, options=options) as (port, worker):
            yield Standing(port, worker, key)
    finally:
        redis.stop()


def of_checkout(folder: Path) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": f"{folder / 'gateway'}:{folder / 'kernels'}"}


async def one_turn(standing: Standing, seconds: float) -> dict[str, float]:
    """Each is a cost: less is better."""
    found = {}
    whole = request_bytes(model="canned", stream=False, max_tokens=64, key=standing.key)
    for connections in (1, 32):
        began_s = cpu_s(standing.worker)
        result = await run(standing.port, whole, connections=connections, seconds=seconds)
        assert not result.bad, f"{result.bad} answers are not whole"
        count = len(result.answers)
        found[f"{connections} connections: CPU µs a request"] = 1e6 * (cpu_s(standing.worker) - began_s) / count
        found[f"{connections} connections: wall µs a request"] = 1e6 * result.seconds / count
        found[f"{connections} connections: p50 µs"] = 1e3 * milliseconds(result, 0.5)
    flood = request_bytes(model="canned", stream=True, max_tokens=FLOOD_TOKENS, key=standing.key)
    result = await run(standing.port, flood, connections=16, seconds=0, rounds=4, tokens=FLOOD_TOKENS)
    assert not result.bad, f"{result.bad} streams are not whole"
    found["16 streams: wall ns a chunk"] = 1e9 / chunks_per_s(result)
    return found


async def in_turns(standing: Mapping[str, Standing], rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in standing}
    for each in standing.values():
        await one_turn(each, 0.5)
    for number in range(rounds):
        names = list(standing)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(await one_turn(standing[name], seconds))
    return found


def table(found: Mapping[str, list[dict[str, float]]]) -> None:
    first, *others = found
    print(f"{'':36} {first:>12}" + "".join(f"{name:>26}" for name in others))
    for figure in found[first][0]:
        base = [turn[figure] for turn in found[first]]
        cells = []
        for name in others:
            ratios = sorted(turn[figure] / before for turn, before in zip(found[name], base, strict=True))
            cells.append(f"x {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        print(f"{figure:36} {statistics.median(base):12.0f}" + "".join(f"{cell:>26}" for cell in cells))


def main() -> int:
    parser = argparse.ArgumentParser(description="What this version costs beside an earlier one.")
    parser.add_argument("--against", type=Path, required=True, help="a checkout of the earlier version")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="of whole answers, each (%(default)s)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})  # Redis too; gateways are moved to the other core
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(3)]
        server = stack.enter_context(upstream(cores[-1]))
        before = gateway(server, cores[0], folders[0], env=of_checkout(options.against))
        bare = gateway(server, cores[0], folders[1])
        full = everything_on(server, cores[0], folders[2])
        standing = {
            "before": Standing(*stack.enter_context(before)),
            "now": Standing(*stack.enter_context(bare)),
            "now, everything on": stack.enter_context(full),
        }
        table(uvloop.run(in_turns(standing, options.rounds, options.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
