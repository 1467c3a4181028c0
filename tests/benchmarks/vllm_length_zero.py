"""What draft length 0 costs on a speculative vLLM: `python -m tests.benchmarks.vllm_length_zero [--pairs 4]`.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any, NamedTuple

from slipstream_tools.up.vllm_server import VllmServer

from tests.benchmarks.vllm_servers import clients, started_servers
from tests.vllm.plugin.client import Server, summaries, together

GOALS = {1: 1.03, 8: 1.03, 16: 1.05}
OUTPUT_TOKENS = 64
RESAMPLES = 4000


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


async def measure(pair: Sequence[VllmServer], in_flight: int, rounds: int) -> list[Round]:
    chance = random.Random(in_flight)
    bodies = summaries(in_flight)
    measured = []
    async with clients(*(server.url for server in pair)) as asked:
        for number in range(-1, rounds):
            figures = [0.0, 0.0]
            for which in chance.sample((0, 1), 2):
                with stopped(pair[1 - which]):
                    figures[which] = await tpot_ms(asked[which], bodies, None if which else 0)
            if number >= 0:  # the first round warms up
                measured.append(Round(*figures))
    return measured


def interval(pairs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Bootstrap interval, 95 %, of the mean over pairs of servers of the median over rounds. Resamples both."""
    chance = random.Random(0)
    drawn = (chance.choices(pairs, k=len(pairs)) for _ in range(RESAMPLES))
    means = sorted(fmean(median(chance.choices(pair, k=len(pair))) for pair in some) for some in drawn)
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def report(found: Mapping[int, Sequence[Sequence[Round]]]) -> None:
    """Print each load; `found` has the rounds of every pair of servers by requests in flight."""
    print("in flight  length 0 ms/token  plain ms/token  ratio  95 % interval  goal  ratio of each pair")
    for in_flight, pairs in found.items():
        rounds = [one for pair in pairs for one in pair]
        ratios = [[one.speculative / one.plain for one in pair] for pair in pairs]
        low, high = interval(ratios)
        zero, plain = median(one.speculative for one in rounds), median(one.plain for one in rounds)
        each = " ".join(f"{median(pair):.3f}" for pair in ratios)
        figures = f"{in_flight:9d} {zero:18.2f} {plain:15.2f} {fmean(map(median, ratios)):6.3f}"
        print(f"{figures}  {low:.3f}–{high:.3f}    {GOALS[in_flight]}  {each}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4, help="pairs of servers, each started anew")
    parser.add_argument("--rounds", type=int, default=30, help="rounds for each pair and load")
    parser.add_argument("--levels", default="1,8,16", help="requests in flight")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a stopped server must go on to end with this process
    found: dict[int, list[list[Round]]] = {int(level): [] for level in arguments.levels.split(",")}
    for _ in range(arguments.pairs):
        with started_servers("speculative", "plain") as pair:
            for in_flight, rounds in found.items():
                rounds.append(asyncio.run(measure(pair, in_flight, arguments.rounds)))
    report(found)


if __name__ == "__main__":
    main()
