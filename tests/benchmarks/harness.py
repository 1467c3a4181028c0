"""What all benchmarks share: options with a size for a smoke run, turns, intervals, a table, and one row of JSON.

    python -m tests.benchmarks.NAME [--smoke] [--json FILE] [options of the benchmark]

A benchmark is a function that gets its options and a `Report`. It reports rows of figures; the harness prints them as a
table and appends one JSON object per run to FILE. `--smoke` uses the small value of each option: it shows that the
benchmark runs, and its figures mean nothing. The exit status is 1 if an answer was wrong or a request failed, never
because a figure missed its goal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

RESAMPLES = 2_000
CONFIDENCE = 0.95

Item = TypeVar("Item")
Cell = Any
"""int, float, str, None for no data, or an `Interval`."""


class Option(NamedTuple):
    """`smoke` replaces `default` with `--smoke`. A default of None makes the option required without `--smoke`. Where
    `smoke` is a list, the option takes several values."""

    default: Any
    smoke: Any
    help: str
    kind: Callable[[str], Any] | None = None
    choices: Sequence[str] | None = None


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float


class Report:
    """The rows of one run, printed as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Cell]] = []
        self.faults: list[str] = []
        self._columns: tuple[str, ...] = ()

    def row(self, name: str, **columns: Cell) -> None:
        """`columns`: figures by name, with the unit at the end of the name (`p99_ms`)."""
        self.rows.append({"name": name, **columns})
        if tuple(columns) != self._columns:
            self._columns = tuple(columns)
            print(f"\n{'':44}" + "".join(f" {column.replace('_', ' '):>16}" for column in columns))
        print(f"{name:44}" + "".join(f" {shown(cell):>16}" for cell in columns.values()), flush=True)

    def note(self, line: str) -> None:
        """Prints a line that is no figure."""
        print(line, flush=True)

    def require(self, condition: object, fault: str) -> None:
        """Lets the run fail with `fault` at its end where `condition` is false."""
        if not condition:
            self.faults.append(fault)


def shown(cell: Cell) -> str:
    """A figure as the table has it."""
    if isinstance(cell, Interval):
        return f"{shown(cell.estimate)} ({shown(cell.low)}-{shown(cell.high)})"
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return "–" if cell is None else str(cell)
    digits = 0 if isinstance(cell, int) or abs(cell) >= 100 else 2 if abs(cell) >= 1 else 3
    return f"{cell:,.{digits}f}"


def benchmark(
    module: str, description: str | None, measure: Callable[[argparse.Namespace, Report], None], **options: Option
) -> None:
    """Parses the options, measures, writes the row of JSON, and exits. `module`: the benchmark's `__file__`."""
    args = _arguments(description or "", options)
    report = Report()
    measure(args, report)
    row = {"benchmark": Path(module).stem, **_circumstances(args), "rows": report.rows}
    if args.json is not None:
        with args.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")
    print(f"\n{row['machine']}, commit {row['commit']}, {row['date']}" + (", smoke run" if args.smoke else ""))
    for fault in report.faults:
        print(f"wrong: {fault}", file=sys.stderr)
    sys.exit(1 if report.faults else 0)


def _arguments(description: str, options: Mapping[str, Option]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="the smallest size: shows that the benchmark runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append one row of JSON")
    for name, option in options.items():
        many = isinstance(option.smoke, list)
        sample = (option.default or [""])[0] if many else option.default
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=option.kind or (str if sample is None else type(sample)),
            nargs="+" if many else None,
            choices=option.choices,
            help=f"{option.help} ({option.default})",
        )
    args = parser.parse_args()
    for name, option in options.items():
        if getattr(args, name) is None:
            setattr(args, name, option.smoke if args.smoke else option.default)
        if getattr(args, name) is None and not args.smoke:
            parser.error(f"--{name.replace('_', '-')} is missing: {option.help}")
    return args


def _circumstances(args: argparse.Namespace) -> dict[str, Any]:
    git = subprocess.run(["git", "log", "-1", "--format=%h"], capture_output=True, text=True, check=False)
    options = {name: value for name, value in vars(args).items() if name not in ("smoke", "json")}
    return {
        "commit": git.stdout.strip() or "unknown",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} {platform.machine()} cores, load {os.getloadavg()[0]:.1f}",
        "smoke": args.smoke,
        "options": options,
    }


def turns(ways: Sequence[Item], rounds: int, *, warm_up: int = 1) -> Iterator[tuple[int, Item]]:
    """Every way once per round, in the opposite order in every second round. The rounds below 0 warm up."""
    for number in range(-warm_up, rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            yield number, way


def interval(statistic: Callable[[Sequence[Item]], float], sample: Sequence[Item]) -> Interval:
    """`statistic` of `sample`, with a percentile bootstrap interval over its items."""
    chance = random.Random(0)  # the same interval for the same sample
    found = sorted(statistic(chance.choices(sample, k=len(sample))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(statistic(sample), found[tail], found[-tail - 1])


def ratio(before: Sequence[float], after: Sequence[float]) -> Interval:
    """The mean of `before` divided by that of `after`, which are pairs: of one request, or of one round."""
    pairs = list(zip(before, after, strict=True))
    return interval(lambda some: fmean(pair[0] for pair in some) / fmean(pair[1] for pair in some), pairs)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of `values` do not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def percentiles(values: Sequence[float], unit: str, *shares: int, scale: float = 1.0) -> dict[str, float]:
    """Columns of a row: `p50_ms`, `p99_ms` and the like, with `longest_ms`."""
    columns = {f"p{share}_{unit}": scale * percentile(values, share / 100) for share in shares or (50, 99)}
    return {**columns, f"longest_{unit}": scale * max(values, default=float("nan"))}
