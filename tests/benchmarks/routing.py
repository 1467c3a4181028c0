"""Does deciding per request pay? The mixed workload against a system that starts with nothing learnt.

    python -m tests.benchmarks.routing [--requests 600] [--seed 2026] [--out FOLDER] [--only alone|load]

Two runs of `slipstream bench` on one system: `alone` has one request in flight and the three modes change request by
request; `load` keeps more in flight than the engine has room for, and the modes change in blocks. Only routed traffic
teaches the gateway. Each run leaves its report in `--out`, and goes on there where it was stopped: a finished one is
not measured again. The oracle takes the faster of the two recorded modes for each request, so the noise of two
measurements is in its favour.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from slipstream_core.types import MEDIUM_MAX_TOKENS, SHORT_MAX_TOKENS, LengthBin
from slipstream_tools.bench.cases import cases_of
from slipstream_tools.bench.oracle import FIRST_REQUESTS
from slipstream_tools.bench.results import Results, Row, read_results
from slipstream_tools.bench.statistics import bootstrap, ratio_of_means
from slipstream_tools.bench.summary import Interval, OracleFigures, Summary, read_summary

from tests.benchmarks.system import running_system

MODES = ("plain", "speculative", "routed")
EDGE_SHARE = 0.1
BLOCK_WAVES = 4
"""Blocks of the load run, in waves of its concurrency; as `slipstream bench` plans them."""


class Figure(NamedTuple):
    """One row of the table: what, the goal, and what was measured over how many."""

    name: str
    goal: str
    measured: str
    n: int


def main() -> None:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    calls = args.out / "calls.jsonl"
    _make_requests(calls, args.requests, args.seed)
    pieces = {"alone": 1, "load": args.concurrency}
    wanted = {name: level for name, level in pieces.items() if args.only in (None, name)}
    missing = {name: level for name, level in wanted.items() if not (args.out / name / "summary.json").is_file()}
    if missing:
        with running_system() as system:
            for name, level in missing.items():
                _bench(system.gateway_url, calls, args.out / name, level, args.seed)
    figures: list[Figure] = []
    if "alone" in wanted:
        figures += alone(read_summary(args.out / "alone" / "summary.json"))
        figures.append(clear_lengths(read_results(args.out / "alone" / "results.jsonl")))
    if "load" in wanted:
        figures += load(read_results(args.out / "load" / "results.jsonl"), args.concurrency)
    for name in wanted:
        if (sessions := read_summary(args.out / name / "summary.json").run.sessions) > 1:
            print(f"\n{name} was interrupted: its {sessions} gateways each began with nothing learnt")
    print(f"\n{args.requests} requests, seed {args.seed}; reports in {args.out}\n{table(figures)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--seed", type=int, default=2_026, help="of the workload and of the order")
    parser.add_argument("--concurrency", type=int, default=16, help="requests in flight in the load run")
    parser.add_argument(
        "--out", type=Path, default=Path(time.strftime(".run/routing/%Y-%m-%d-%H%M%S")), metavar="FOLDER"
    )
    parser.add_argument("--only", choices=("alone", "load"), help="one of the two runs")
    return parser.parse_args()


def _make_requests(path: Path, requests: int, seed: int) -> None:
    command = ["-m", "slipstream_engine.embedded.mixed", "--requests", str(requests), "--seed", str(seed), "--bursts"]
    with path.open("wb") as file:
        subprocess.run([sys.executable, *command], stdout=file, check=True)


def _bench(url: str, calls: Path, out: Path, concurrency: int, seed: int) -> None:
    print(f"\n-- {out.name}: {concurrency} in flight", flush=True)
    command = [
        *(sys.executable, "-m", "slipstream_tools.cli", "bench", "--url", url, "--requests", str(calls)),
        *("--modes", ",".join(MODES), "--concurrency", str(concurrency), "--seed", str(seed), "--out", str(out)),
    ]
    subprocess.run(command, check=True)


def alone(summary: Summary) -> Iterator[Figure]:
    """The figures of the run with one request in flight."""
    [oracle] = summary.oracle
    warm = max(oracle.requests - FIRST_REQUESTS, 0)
    yield Figure("oracle's saving captured, warm", "≥ 95 %", _percent(oracle.captured_warm), warm)
    yield Figure(
        f"  first {oracle.first_requests} from nothing",
        "≥ 75 %",
        _percent(oracle.captured_first),
        oracle.first_requests,
    )
    yield Figure("  by the recorded time of the chosen arm", "", _percent(oracle.captured_by_choice), oracle.requests)
    yield Figure("mean E2E, plain ÷ routed", "≥ 1.3", _interval(oracle.plain_over_routed), oracle.requests)
    yield Figure("mean E2E, speculative ÷ routed", "≥ 1.05", _interval(oracle.speculative_over_routed), oracle.requests)
    yield _worst(oracle)
    correlation = "–" if oracle.rank_correlation_warm is None else f"{oracle.rank_correlation_warm:.2f}"
    yield Figure("predicted against actual saving, rank correlation warm", "≥ 0.8", correlation, warm)
    for one in oracle.lengths_warm:
        measured = f"{_percent(one.precision)} / {_percent(one.recall)}"
        yield Figure(f"length bin {one.length}, precision / recall warm", "≥ 95 % / ≥ 90 %", measured, one.actual)


def clear_lengths(results: Results) -> Figure:
    """The share of right bins among answers that are not near a bin's edge: two that differ by a word or two can lie
    on either side of one, and no forecast tells which."""
    tokens = {row.index: row.output_tokens for row in results.rows if row.mode == "plain" and row.error is None}
    routed = [row for row in results.rows if row.mode == "routed" and row.index in tokens and row.request_class]
    edges = (SHORT_MAX_TOKENS, MEDIUM_MAX_TOKENS)
    clear = [
        row for row in routed[FIRST_REQUESTS:] if all(abs(tokens[row.index] / edge - 1) > EDGE_SHARE for edge in edges)
    ]
    right = sum((row.request_class or "").endswith(f"/{LengthBin.of(tokens[row.index])}") for row in clear)
    name = f"  right bin, more than {EDGE_SHARE:.0%} from an edge, warm"
    return Figure(name, "", _percent(right / len(clear) if clear else None), len(clear))


def _worst(oracle: OracleFigures) -> Figure:
    worst = oracle.worst_class
    if worst is None:
        return Figure("worst class, routed slower than plain by", "≤ 2 %", "–", 0)
    measured = f"{_percent(worst.slow_down.estimate)} ({_percent(worst.slow_down.low)} to "
    measured += f"{_percent(worst.slow_down.high)})"
    return Figure(f"worst class ({worst.request_class}), routed slower than plain by", "≤ 2 %", measured, worst.pairs)


def load(results: Results, concurrency: int) -> Iterator[Figure]:
    """Routed throughput over that of the other modes, in tokens per second, block by block."""
    blocks = list(_blocks(results.rows, concurrency * BLOCK_WAVES))
    routed = [block["routed"] for block in blocks]
    for mode, goal in (("speculative", "≥ 1.0"), ("plain", "≥ 0.98")):
        others = [block[mode] for block in blocks]
        ratio = ratio_of_means(np.array(routed), np.array(others))
        [measured] = bootstrap([ratio], list(range(len(blocks))), seed=1)
        name = f"throughput with {concurrency} in flight, routed ÷ {mode}"
        yield Figure(name, goal, _interval(measured), len(blocks))
    half = [case.rows["routed"] for case in cases_of(results.rows) if "routed" in case.rows]
    share = sum(row.arm == "speculative" for row in half[len(half) // 2 :]) / max(len(half) - len(half) // 2, 1)
    yield Figure("  share that routed speculates there, second half", "", _percent(share), len(half) - len(half) // 2)


def _blocks(rows: Sequence[Row], size: int) -> Iterator[dict[str, float]]:
    """Tokens per second of each mode, for each block of requests that all modes answered in."""
    grouped: dict[int, dict[str, list[Row]]] = {}
    for row in rows:
        if row.error is None and row.e2e_s is not None:
            grouped.setdefault(row.index // size, {}).setdefault(row.mode, []).append(row)
    for modes in grouped.values():
        if set(modes) >= set(MODES):
            yield {mode: _tokens_per_s(some) for mode, some in modes.items()}


def _tokens_per_s(rows: Sequence[Row]) -> float:
    start = min(row.started_s for row in rows)
    end = max(row.started_s + (row.e2e_s or 0.0) for row in rows)
    return sum(row.output_tokens for row in rows) / (end - start)


def table(figures: Sequence[Figure]) -> str:
    rows = [("figure", "goal", "measured", "n"), *((one.name, one.goal, one.measured, str(one.n)) for one in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _interval(value: Interval | None) -> str:
    return "–" if value is None else f"{value.estimate:.2f} ({value.low:.2f} to {value.high:.2f})"


if __name__ == "__main__":
    main()
