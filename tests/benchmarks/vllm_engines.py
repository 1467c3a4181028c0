"""The embedded engine beside vLLM: tokens per second on the same weights, by load, plain and with drafts of 4.

    python -m tests.benchmarks.vllm_engines [--blocks 6] [--levels 1,8,16]

Both systems run at the same time, each behind a gateway of its own; one of them works while the other is idle. A block
is the same requests of the mixed workload on each engine in each mode, in an order drawn from the seed. The ratio is
that of summed tokens over summed time, and its interval resamples blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from slipstream_tools.bench.client import BenchClient
from slipstream_tools.bench.plan import BenchMode, parse_mode
from slipstream_tools.bench.statistics import bootstrap, ratio_of_means

from tests.benchmarks.system import MODEL, running_system
from tests.benchmarks.vllm_system import running_vllm_gateway

EMBEDDED, VLLM = "embedded", "vllm"
MODES = ("plain", "speculative:4")
WAVES = 2
SEED = 90_210
TIMEOUT_S = 300.0


class Pace(NamedTuple):
    """What one block gave on one engine."""

    tokens: int
    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=6, help="blocks for each load")
    parser.add_argument("--levels", default="1,8,16", help="requests in flight")
    args = parser.parse_args()
    levels = [int(part) for part in args.levels.split(",")]
    with running_system() as embedded, running_vllm_gateway() as vllm_url:
        urls = {EMBEDDED: embedded.gateway_url, VLLM: vllm_url}
        asyncio.run(_measure(urls, levels, args.blocks))


async def _measure(urls: Mapping[str, str], levels: Sequence[int], blocks: int) -> None:
    clients = {name: BenchClient(url, api_key=None, timeout_s=TIMEOUT_S) for name, url in urls.items()}
    order = random.Random(SEED)
    print(f"{'in flight':>9} {'mode':14} {'embedded tok/s':>15} {'vLLM tok/s':>11}  embedded ÷ vLLM")
    try:
        for level in levels:
            paces: dict[tuple[str, str], list[Pace]] = defaultdict(list)
            for block, bodies in enumerate(_bodies(blocks + 1, max(4, WAVES * level))):
                for name, mode in order.sample(runs := list(product(urls, MODES)), len(runs)):
                    pace = await _run(clients[name], parse_mode(mode), bodies, level)
                    if block:  # the first one warms up
                        paces[name, mode].append(pace)
            for mode in MODES:
                print(_row(level, mode, paces[EMBEDDED, mode], paces[VLLM, mode]), flush=True)
    finally:
        for client in clients.values():
            await client.close()


def _bodies(blocks: int, size: int) -> list[list[dict[str, Any]]]:
    command = ["-m", "slipstream_engine.embedded.mixed", "--requests", str(blocks * size), "--seed", str(SEED)]
    done = subprocess.run([sys.executable, *command], capture_output=True, check=True)
    bodies = [{**json.loads(line)["request"], "temperature": 0, "model": MODEL} for line in done.stdout.splitlines()]
    return [bodies[start : start + size] for start in range(0, len(bodies), size)]


async def _run(client: BenchClient, mode: BenchMode, bodies: Sequence[Mapping[str, Any]], level: int) -> Pace:
    waiting = iter(bodies)
    tokens = 0

    async def one_after_another() -> None:
        nonlocal tokens
        for body in waiting:
            answer = await client.run(body, mode.headers(learn=False))
            if answer.error is not None:
                raise SystemExit(f"a request failed: {answer.error}")
            tokens += answer.output_tokens

    began_s = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(level)))
    return Pace(tokens, time.perf_counter() - began_s)


def _row(level: int, mode: str, embedded: Sequence[Pace], vllm: Sequence[Pace]) -> str:
    ours, theirs = (np.array([pace.tokens_per_s for pace in paces]) for paces in (embedded, vllm))
    [found] = bootstrap([ratio_of_means(ours, theirs)], list(range(len(ours))), seed=1)
    interval = "" if found is None else f" ({found.low:.2f} to {found.high:.2f})"
    ratio = f"{ours.mean() / theirs.mean():.2f}{interval}"
    return f"{level:9} {mode:14} {ours.mean():15.0f} {theirs.mean():11.0f}  {ratio}"


if __name__ == "__main__":
    main()
