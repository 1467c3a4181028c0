"""What draft length 0 costs on a speculative vLLM: `python -m tests.benchmarks.vllm_length_zero [--rounds 12]`.

Two servers of the embedded target: one speculates (plugin, draft model, four tokens) and is asked for length 0, one has
no speculation. Rounds alternate between both with the same prompts, in an order drawn anew for each round; the
figure is the ratio of the two mean times per output token of a round, its median over rounds, and a bootstrap interval.
Goals: 1.03 at 1 and 8 in flight, 1.05 at 16. `--urls SPECULATIVE PLAIN` measures servers that run already.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from tests.benchmarks.vllm_servers import clients, servers
from tests.vllm.plugin.client import Server, summaries, together

GOALS = {1: 1.03, 8: 1.03, 16: 1.05}
OUTPUT_TOKENS = 96
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


async def measure(speculative: Server, plain: Server, in_flight: int, rounds: int) -> list[Round]:
    chance = random.Random(in_flight)
    bodies = summaries(in_flight)
    await together(tpot_ms(speculative, bodies, 0), tpot_ms(plain, bodies, None))
    measured = []
    for _ in range(rounds):
        figures: dict[str, float] = {}
        for name in chance.sample(("speculative", "plain"), 2):
            asked = (speculative, 0) if name == "speculative" else (plain, None)
            figures[name] = await tpot_ms(asked[0], bodies, asked[1])
        measured.append(Round(**figures))
    return measured


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Bootstrap interval of the median, 95 %."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


async def report(urls: Sequence[str], rounds: int) -> None:
    print("in flight  length 0 ms/token  plain ms/token  ratio  95 % interval  goal")
    async with clients(*urls) as [speculative, plain]:
        for in_flight, goal in GOALS.items():
            measured = await measure(speculative, plain, in_flight, rounds)
            ratios = [one.speculative / one.plain for one in measured]
            low, high = interval(ratios)
            zero, plain_ms = fmean(one.speculative for one in measured), fmean(one.plain for one in measured)
            figures = f"{in_flight:9d} {zero:18.2f} {plain_ms:15.2f} {median(ratios):6.3f}"
            print(f"{figures}  {low:.3f}–{high:.3f}    {goal}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--urls", nargs=2, metavar="URL")
    arguments = parser.parse_args()
    if arguments.urls:
        asyncio.run(report(arguments.urls, arguments.rounds))
        return
    with servers("speculative", "plain") as urls:
        asyncio.run(report(urls, arguments.rounds))


if __name__ == "__main__":
    main()
