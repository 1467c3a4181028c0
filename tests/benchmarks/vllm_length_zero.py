"""What draft length 0 costs on a speculative vLLM.

Two servers of the embedded target: one speculates (plugin, draft model, four tokens) and is asked for length 0, one has
no speculation. Rounds alternate between both with the same prompts, in an order drawn anew for each round, and the
ratio of a pair of servers is the median over its rounds. Two equal servers differ by a few percent for as long as they
run, so the figure is the mean over pairs that are started anew, with a bootstrap interval over pairs and rounds. The
server that is not measured is stopped by a signal: vLLM's workers go on polling for about a second after a request, on
a core that the other server needs. Goals: 1.03 at 1 and 8 in flight, 1.05 at 16.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any, NamedTuple

from slipstream_tools.up.vllm_server import VllmServer

from tests.benchmarks.harness import RESAMPLES, Interval, Option, Report, benchmark
from tests.benchmarks.vllm_servers import clients, servers
from tests.vllm.plugin.client import Server, summaries, together

OUTPUT_TOKENS = 64


class Round(NamedTuple):
    """Milliseconds per output token, both servers asked in turn."""

    speculative: float
    plain: float


async def tpot_ms(server: Server, bodies: Sequence[dict[str, Any]], length: int | None) -> float:
    """Mean time per output token after the first of requests that run together: whole time less that of one token."""
    exact = {"ignore_eos": True}
    started = time.perf_counter()
    await together(*(server.chat({**body, "max_tokens": 1}, length, **exact) for body in bodies))
    first_s = time.perf_counter() - started
    started = time.perf_counter()
    await together(*(server.chat({**body, "max_tokens": OUTPUT_TOKENS}, length, **exact) for body in bodies))
    return 1000.0 * (time.perf_counter() - started - first_s) / (OUTPUT_TOKENS - 1)


@contextmanager
def stopped(server: VllmServer) -> Iterator[None]:
    """The processes of `server` do not run meanwhile."""
    os.killpg(server.child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(server.child.pid, signal.SIGCONT)


async def rounds(pair: Sequence[VllmServer], in_flight: int, count: int) -> list[Round]:
    chance = random.Random(in_flight)
    bodies = summaries(in_flight)
    measured = []
    async with clients(*(server.url for server in pair)) as asked:
        for number in range(-1, count):
            figures = [0.0, 0.0]
            for which in chance.sample((0, 1), 2):
                with stopped(pair[1 - which]):
                    figures[which] = await tpot_ms(asked[which], bodies, None if which else 0)
            if number >= 0:  # the first round warms up
                measured.append(Round(*figures))
    return measured


def over_pairs(pairs: Sequence[Sequence[float]]) -> Interval:
    """The mean over pairs of servers of the median over rounds, with a bootstrap interval that resamples both."""
    chance = random.Random(0)
    drawn = (chance.choices(pairs, k=len(pairs)) for _ in range(RESAMPLES))
    means = sorted(fmean(median(chance.choices(pair, k=len(pair))) for pair in some) for some in drawn)
    tail = RESAMPLES // 40
    return Interval(fmean(map(median, pairs)), means[tail], means[-tail - 1])


def measure(args: argparse.Namespace, report: Report) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a stopped server must go on to end with this process
    found: dict[int, list[list[Round]]] = {level: [] for level in args.levels}
    for _ in range(args.pairs):
        with servers("speculative", "plain") as pair:
            for in_flight, pairs in found.items():
                pairs.append(asyncio.run(rounds(pair, in_flight, args.rounds)))
    for in_flight, pairs in found.items():
        every = [one for pair in pairs for one in pair]
        report.row(
            f"{in_flight} in flight: goal {1.05 if in_flight > 8 else 1.03}",
            length_0_ms=median(one.speculative for one in every),
            plain_ms=median(one.plain for one in every),
            ratio=over_pairs([[one.speculative / one.plain for one in pair] for pair in pairs]),
        )


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        pairs=Option(4, 1, "pairs of servers, each started anew"),
        rounds=Option(30, 1, "rounds for each pair and load"),
        levels=Option([1, 8, 16], [1], "requests in flight"),
    )
