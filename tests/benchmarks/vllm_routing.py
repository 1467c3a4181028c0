"""Does deciding per request pay on vLLM? Routed traffic against plain decoding and against every fixed draft length.

    python -m tests.benchmarks.vllm_routing [--requests 96] [--levels 1,8,16] [--policy FIELDS] [--out FOLDER]

One vLLM server with the plugin serves the embedded pair, one gateway stands before it. Each request of the mixed
workload runs in every mode: `plain`, `speculative:1` to the longest draft, `routed`. With one request in flight the
modes change request by request, above that block by block, in an order drawn from the seed. The gateway starts with
nothing learnt, and only routed traffic teaches it. The figure is the mean E2E latency of the best fixed setting over
that of routed; the best one is chosen after the fact, which is in its favour. Intervals resample blocks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from slipstream_tools.bench.plan import GROUP_WAVES
from slipstream_tools.bench.results import Row, read_results
from slipstream_tools.bench.statistics import bootstrap, ratio_of_means

from tests.benchmarks.vllm_servers import DRAFT_TOKENS
from tests.benchmarks.vllm_system import running_vllm_gateway

ROUTED = "routed"
Cases = Mapping[int, Mapping[str, Row]]
"""By request index, the whole answers by mode."""


class Figure(NamedTuple):
    """Mean E2E latency of `fixed` over that of routed, with its interval, over `count` requests."""

    fixed: str
    ratio: float
    low: float
    high: float
    count: int


def main() -> None:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / "bench" / "results.jsonl"
    if not results.is_file():
        _measure(args)
    rows = [row for row in read_results(results).rows if row.error is None and row.e2e_s is not None]
    for level in _levels(args.levels):
        _report(level, [row for row in rows if row.concurrency == level])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--seed", type=int, default=2_026, help="of the workload and of the order")
    parser.add_argument("--levels", default="1,8,16", help="requests in flight, one run each")
    parser.add_argument("--policy", default="", help="further fields of the policy: 'decision: cautious'")
    parser.add_argument("--out", type=Path, default=Path(time.strftime(".run/vllm-routing/%Y-%m-%d-%H%M%S")))
    return parser.parse_args()


def _levels(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _measure(args: argparse.Namespace) -> None:
    calls = args.out / "calls.jsonl"
    workload = ["-m", "slipstream_engine.embedded.mixed", "--requests", str(args.requests), "--seed", str(args.seed)]
    with calls.open("wb") as file:
        subprocess.run([sys.executable, *workload], stdout=file, check=True)
    modes = ["plain", *(f"speculative:{length}" for length in range(1, DRAFT_TOKENS + 1)), ROUTED]
    with running_vllm_gateway(args.policy) as url:
        command = [
            *(sys.executable, "-m", "slipstream_tools.cli", "bench", "--url", url),
            *("--requests", str(calls), "--modes", ",".join(modes), "--concurrency", args.levels),
            *("--seed", str(args.seed), "--out", str(args.out / "bench")),
        ]
        subprocess.run(command, check=True)


def _report(level: int, rows: Sequence[Row]) -> None:
    cases = _cases(rows)
    print(f"\n{level} in flight, {len(cases)} requests answered in every mode")
    if not cases:
        return
    block = 1 if level == 1 else level * GROUP_WAVES
    indices = sorted(cases)
    for name, part in (("all", indices), ("second half", indices[len(indices) // 2 :])):
        figures = sorted(_figures({index: cases[index] for index in part}, block), key=lambda one: one.ratio)
        best = figures[0]
        print(f"  {name}: best fixed ({best.fixed}) ÷ routed {best.ratio:.3f} ({best.low:.3f} to {best.high:.3f})")
        for one in figures:
            print(f"    {one.fixed:14} ÷ routed {one.ratio:.3f} ({one.low:.3f} to {one.high:.3f}), n {one.count}")
    _report_classes(cases)


def _cases(rows: Sequence[Row]) -> Cases:
    modes = {row.mode for row in rows}
    cases: dict[int, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row.index, {})[row.mode] = row
    return {index: by_mode for index, by_mode in cases.items() if by_mode.keys() == modes}


def _figures(cases: Cases, block: int) -> Iterator[Figure]:
    routed = np.array([one[ROUTED].e2e_s for one in cases.values()])
    clusters = [index // block for index in cases]
    for mode in next(iter(cases.values())).keys() - {ROUTED}:
        fixed = np.array([one[mode].e2e_s for one in cases.values()])
        [found] = bootstrap([ratio_of_means(fixed, routed)], clusters, seed=1)
        estimate = float(fixed.mean() / routed.mean())
        low, high = (estimate, estimate) if found is None else (found.low, found.high)
        yield Figure(mode, estimate, low, high, len(cases))


def _report_classes(cases: Cases) -> None:
    """What was decided by class, beside what would have been best there."""
    by_class: dict[str, list[Mapping[str, Row]]] = {}
    for one in cases.values():
        by_class.setdefault(one[ROUTED].label or "unlabelled", []).append(one)
    for label, some in sorted(by_class.items()):
        lengths = Counter(one[ROUTED].draft_length or 0 for one in some)
        means = {mode: np.mean([one[mode].e2e_s or 0.0 for one in some]) for mode in some[0]}
        best = min((mode for mode in means if mode != ROUTED), key=means.__getitem__)
        decided = ", ".join(f"{length}: {count}" for length, count in sorted(lengths.items()))
        print(
            f"    {label:16} n {len(some):3} best {best:14} {means[best]:.3f} s, routed {means[ROUTED]:.3f} s, "
            f"draft lengths {{{decided}}}"
        )


if __name__ == "__main__":
    main()
