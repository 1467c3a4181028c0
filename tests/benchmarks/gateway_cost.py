"""What the gateway adds in front of an OpenAI-compatible server that costs nothing, without keys, with keys and limits,
and with limits in Redis.

Each gateway has core 0 for itself while its turn lasts; load, server and Redis share the other one. By turns, with the
server alone as the first way. Figures are medians of the rounds; the CPU time is that of the gateway for one whole
answer, with one and with 32 connections. `crowd_mb` is the memory after 500 streams at once.

`--other COMMAND` compares with another installation's `slipstream`, such as that of a compiled wheel: the last row has
its figures over those of this one's gateway, round by round.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
import uvloop

from tests.benchmarks import canned
from tests.benchmarks.harness import Option, Report, benchmark, percentile, ratio, turns
from tests.benchmarks.load import WHOLE, request_bytes, run
from tests.gateway.key_file import Keys
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer

FLOOD_TOKENS, PACED_TOKENS, PACE_MS = 256, 61, 20
CROWD = 500  # streams at once, near the limit of a worker
PLAIN, OTHER = "gateway", "gateway of the other installation"
RATIOS = ("answers_per_s", "cpu_us", "cpu_32_us", "chunks_per_s", "memory_mb")
LIMITS = ("--requests-per-minute", "100000000", "--tokens-per-minute", "1000000000", "--concurrent", "1000")


class Way(NamedTuple):
    """`process`: of the gateway; None without one."""

    name: str
    port: int
    process: psutil.Process | None
    key: str = ""


def new_key(path: Path) -> str:
    """A key with every limit that costs something and none that is reached."""
    keys = Keys(path)
    keys.run("price", "--input", "0.1", "--output", "0.4")
    return keys.create(*LIMITS, "--usd-per-day", "1000000", "--model", "canned")


def ways(stack: ExitStack, folder: Path, other: str) -> Iterator[Way]:
    """The server alone, and each gateway before it; of `other`, another installation's command, one without keys."""
    url = stack.enter_context(canned.upstream())
    redis = RedisServer(folder, *lasting_ports(1))
    stack.callback(redis.stop)
    keys = folder / "keys.json"
    key, manifest = new_key(keys), canned.manifest(folder, url)
    yield Way("no gateway", int(url.rpartition(":")[2]), None)
    if other:
        started = canned.gateway(folder, *manifest, name="other", program=shlex.split(other))
        yield Way(OTHER, *stack.enter_context(started))
    for name, options in (
        (PLAIN, ()),
        ("gateway, keys and limits", ("--keys", str(keys))),
        ("gateway, keys and limits in Redis", ("--keys", str(keys), "--redis", redis.url)),
    ):
        yield Way(name, *stack.enter_context(canned.gateway(folder, *manifest, *options)), key if options else "")


async def figures(way: Way, seconds: float, *, is_last: bool) -> tuple[dict[str, float], int]:
    """The figures of one turn, and how many answers were not whole. The crowd comes last: its memory stays."""

    def request(tokens: int, pace_ms: int = 0) -> bytes:
        return request_bytes(model="canned", stream=True, max_tokens=tokens, key=way.key, pace_ms=pace_ms)

    whole = WHOLE if not way.key else request_bytes(model="canned", stream=False, max_tokens=64, key=way.key)
    await run(way.port, whole, connections=32, seconds=0.3)
    begun_s = used_s(way)
    one = await run(way.port, whole, connections=1, seconds=seconds)
    one_s = used_s(way) - begun_s
    many = await run(way.port, whole, connections=32, seconds=seconds)
    many_s = used_s(way) - begun_s - one_s
    flood = await run(way.port, request(FLOOD_TOKENS), connections=16, seconds=0, rounds=8, tokens=FLOOD_TOKENS)
    paced = request(PACED_TOKENS, PACE_MS)
    streams = await run(way.port, paced, connections=64, seconds=0, rounds=1, tokens=PACED_TOKENS)
    bad = one.bad + many.bad + flood.bad + streams.bad
    found = {
        "answers_per_s": many.per_s,
        "p50_ms": percentile(one.took_ms(), 0.5),
        "p99_ms": percentile(one.took_ms(), 0.99),
        "cpu_us": 1e6 * one_s / len(one.answers),
        "cpu_32_us": 1e6 * many_s / len(many.answers),
        "ttft_p50_ms": 1e3 * percentile([answer.first_s or 0.0 for answer in streams.answers], 0.5),
        "gap_p99_ms": 1e3 * percentile([gap for answer in streams.answers for gap in answer.gaps_s], 0.99),
        "chunks_per_s": flood.chunks_per_s,
        "memory_mb": resident_mb(way),
    }
    if is_last:
        crowd = await run(way.port, paced, connections=CROWD, seconds=0, rounds=1, tokens=PACED_TOKENS)
        found["crowd_mb"] = resident_mb(way)
        bad += crowd.bad
    return found, bad


def used_s(way: Way) -> float:
    """CPU time of the gateway so far."""
    return canned.cpu_s(way.process) if way.process else 0.0


def resident_mb(way: Way) -> float:
    return way.process.memory_info().rss / 2**20 if way.process else 0.0


def measure(args: argparse.Namespace, report: Report) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.sched_setaffinity(0, {canned.OTHER_CORE})
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        for turn, way in turns(list(ways(stack, folder, args.other)), args.rounds, warm_up=0):
            one, bad = uvloop.run(figures(way, args.seconds, is_last=turn == args.rounds - 1))
            found[way.name].append(one)
            report.require(not bad, f"{way.name}: {bad} answers were not whole")
    for name, rounds in found.items():
        report.row(name, **{column: median(one[column] for one in rounds if column in one) for column in rounds[-1]})
    if args.other:
        both = {column: [[one[column] for one in found[name]] for name in (OTHER, PLAIN)] for column in RATIOS}
        report.row("other ÷ this", **{column: ratio(*pair) for column, pair in both.items()})
    report.note("goals: p50 +0.30 ms, gap p99 +1.5 ms, 90 MB; with keys in Redis 1.25 × the p50 without")


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        seconds=Option(3.0, 0.2, "per figure of whole answers"),
        rounds=Option(3, 1, "turns of each way"),
        other=Option("", "", "command of another installation, to compare with"),
    )
