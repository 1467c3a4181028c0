"""Does deciding per request pay? The mixed workload against a system that starts with nothing learnt.

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

from slipstream_core.types import MEDIUM_MAX_TOKENS, SHORT_MAX_TOKENS, LengthBin
from slipstream_tools.bench.cases import cases_of
from slipstream_tools.bench.oracle import FIRST_REQUESTS
from slipstream_tools.bench.results import Results, Row, read_results
from slipstream_tools.bench.summary import Interval as BenchInterval
from slipstream_tools.bench.summary import Summary, read_summary

from tests.benchmarks.harness import Interval, Option, Report, benchmark, ratio
from tests.benchmarks.systems import running_system
from tests.support.command import SLIPSTREAM

MODES = ("plain", "speculative", "routed")
EDGE_SHARE = 0.1
BLOCK_WAVES = 4
"""Blocks of the load run, in waves of its concurrency; as `slipstream bench` plans them."""


def measure(args: argparse.Namespace, report: Report) -> None:
    out = Path(args.out or time.strftime(".run/routing/%Y-%m-%d-%H%M%S"))
    calls, levels = out / "calls.jsonl", {"alone": 1, "load": args.concurrency}
    out.mkdir(parents=True, exist_ok=True)
    make_requests(calls, args.requests, args.seed)
    missing = [name for name in args.only if not (out / name / "summary.json").is_file()]
    if missing:
        with running_system() as system:
            for name in missing:
                bench(system.gateway_url, calls, out / name, levels[name], args.seed)
    if "alone" in args.only:
        alone(read_summary(out / "alone" / "summary.json"), report)
        clear_lengths(read_results(out / "alone" / "results.jsonl"), report)
    if "load" in args.only:
        load(read_results(out / "load" / "results.jsonl"), args.concurrency, report)
    for name in args.only:
        if (sessions := read_summary(out / name / "summary.json").run.sessions) > 1:
            report.note(f"{name} was interrupted: its {sessions} gateways each began with nothing learnt")
    report.note(f"{args.requests} requests, seed {args.seed}; reports in {out}")


def make_requests(path: Path, requests: int, seed: int) -> None:
    """Writes requests of the mixed workload."""
    command = ["-m", "slipstream_engine.embedded.mixed", "--requests", str(requests), "--seed", str(seed), "--bursts"]
    with path.open("wb") as file:
        subprocess.run([sys.executable, *command], stdout=file, check=True)


def bench(url: str, calls: Path, out: Path, concurrency: int, seed: int) -> None:
    """Runs `slipstream bench`, which writes its report to `out`."""
    command = [
        *(*SLIPSTREAM, "bench", "--url", url, "--requests", str(calls)),
        *("--modes", ",".join(MODES), "--concurrency", str(concurrency), "--seed", str(seed), "--out", str(out)),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def alone(summary: Summary, report: Report) -> None:
    """The figures of the run with one request in flight."""
    [oracle] = summary.oracle
    for name, goal, measured in (
        ("oracle's saving captured, warm", "0.95", oracle.captured_warm),
        (f"  first {oracle.first_requests} from nothing", "0.75", oracle.captured_first),
        ("  by the recorded time of the chosen arm", "", oracle.captured_by_choice),
        ("mean E2E, plain ÷ routed", "1.3", _interval(oracle.plain_over_routed)),
        ("mean E2E, speculative ÷ routed", "1.05", _interval(oracle.speculative_over_routed)),
        ("rank correlation of predicted and actual saving", "0.8", oracle.rank_correlation_warm),
    ):
        report.row(name, measured=measured, goal=goal, n=oracle.requests)
    if (worst := oracle.worst_class) is not None:
        name = f"worst class ({worst.request_class}), routed slower by"
        report.row(name, measured=_interval(worst.slow_down), goal="0.02", n=worst.pairs)
    for one in oracle.lengths_warm:
        report.row(f"length bin {one.length}, warm: goals 0.95, 0.90", precision=one.precision, recall=one.recall)


def clear_lengths(results: Results, report: Report) -> None:
    """The share of right bins among answers that are not near a bin's edge: two that differ by a word or two can lie
    on either side of one, and no forecast tells which."""
    tokens = {row.index: row.output_tokens for row in results.rows if row.mode == "plain" and row.error is None}
    routed = [row for row in results.rows if row.mode == "routed" and row.index in tokens and row.request_class]
    edges = (SHORT_MAX_TOKENS, MEDIUM_MAX_TOKENS)
    clear = [
        row for row in routed[FIRST_REQUESTS:] if all(abs(tokens[row.index] / edge - 1) > EDGE_SHARE for edge in edges)
    ]
    right = sum((row.request_class or "").endswith(f"/{LengthBin.of(tokens[row.index])}") for row in clear)
    share = right / len(clear) if clear else None
    report.row(f"right bin, more than {EDGE_SHARE:.0%} from an edge, warm", measured=share, goal="", n=len(clear))


def load(results: Results, concurrency: int, report: Report) -> None:
    """Routed throughput over that of the other modes, in tokens per second, block by block."""
    blocks = list(_blocks(results.rows, concurrency * BLOCK_WAVES))
    for mode, goal in (("speculative", "1.0"), ("plain", "0.98")):
        measured = ratio([block["routed"] for block in blocks], [block[mode] for block in blocks]) if blocks else None
        name = f"throughput with {concurrency} in flight, routed ÷ {mode}"
        report.row(name, measured=measured, goal=goal, n=len(blocks))
    half = [case.rows["routed"] for case in cases_of(results.rows) if "routed" in case.rows]
    half = half[len(half) // 2 :]
    share = sum(row.arm == "speculative" for row in half) / max(len(half), 1)
    report.row("  speculative share of routed there, second half", measured=share, goal="", n=len(half))


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


def _interval(value: BenchInterval | None) -> Interval | None:
    return None if value is None else Interval(value.estimate, value.low, value.high)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        requests=Option(600, 6, "of the mixed workload"),
        seed=Option(2_026, 2_026, "of the workload and of the order"),
        concurrency=Option(16, 2, "requests in flight in the load run"),
        out=Option("", "", "the reports, by default below .run/routing"),
        only=Option(["alone", "load"], ["alone", "load"], "one of the two runs", choices=("alone", "load")),
    )
