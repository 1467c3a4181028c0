"""The figures of each cell (class × length bin × concurrency × draft), per mode and against plain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from slipstream_core.types import Arm

from slipstream_tools.bench import statistics as stats
from slipstream_tools.bench.arrivals import Load
from slipstream_tools.bench.cases import Case, Prices, by_place
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.speculation import speculation
from slipstream_tools.bench.statistics import Floats, Statistic
from slipstream_tools.bench.summary import ALL, LENGTHS, PLAIN, Cell, Comparison, ModeFigures, Quality


def cells_of(
    cases: Sequence[Case], modes: Sequence[str], prices: Prices, *, seed: int, lengths: Sequence[str] = (ALL, *LENGTHS)
) -> tuple[Cell, ...]:
    """All cells that have a case, in the order of `Summary.cells`."""
    classes = [ALL, *sorted({case.request_class for case in cases})]
    return tuple(
        _cell(taken, (*place, name, length), modes, prices, seed)
        for place, here in by_place(cases).items()
        for name, length in product(classes, lengths)
        if (taken := [case for case in here if name in (ALL, case.request_class) and length in (ALL, case.length)])
    )


def _cell(
    cases: Sequence[Case], name: tuple[str | None, Load, str, str], modes: Sequence[str], prices: Prices, seed: int
) -> Cell:
    """The cell of `cases`; `name` is its draft, concurrency, class and length."""
    draft, concurrency, request_class, length = name
    compared = [mode for mode in modes if mode != PLAIN] if PLAIN in modes else []
    # A seed per cell, so that its intervals do not depend on the other cells.
    seeds = {mode: stats.seed_of(seed, *name, mode) for mode in compared}
    return Cell(
        request_class=request_class,
        length=length,
        concurrency=concurrency,
        draft=draft,
        requests=len({case.index for case in cases}),
        modes={mode: _figures(mode, cases, prices, whole=request_class == length == ALL) for mode in modes},
        comparisons={mode: compare(cases, mode, prices, seed=seeds[mode]) for mode in compared},
    )


def _figures(mode: str, cases: Sequence[Case], prices: Prices, *, whole: bool) -> ModeFigures:
    rows = [case.rows[mode] for case in cases if mode in case.rows]
    costs = [prices.cost(row) for row in rows] if prices.known else []
    tokens = sum(row.output_tokens for row in rows)
    return ModeFigures(
        answered=len(rows),
        failed=sum(mode in case.failed for case in cases),
        ttft_s=stats.distribution([row.ttft_s for row in rows if row.ttft_s is not None]),
        tpot_s=stats.distribution([row.tpot_s for row in rows if row.tpot_s is not None]),
        e2e_s=stats.distribution([row.e2e_s for row in rows if row.e2e_s is not None]),
        output_tokens=stats.distribution([float(row.output_tokens) for row in rows]),
        speculated_share=sum(row.arm == Arm.SPECULATIVE for row in rows) / len(rows) if rows else None,
        speculation=speculation(rows),
        cost_per_response=sum(costs) / len(costs) if costs else None,
        cost_per_1000_tokens=1000 * sum(costs) / tokens if costs and tokens else None,
        quality=_quality(rows),
        throughput_tokens_per_s=_throughput(rows) if whole else None,
    )


def _quality(rows: Sequence[Row]) -> Quality | None:
    checked = [row for row in rows if row.passed is not None]
    if not checked:
        return None
    passed = sum(bool(row.passed) for row in checked)
    names = dict.fromkeys(name for row in checked for name in row.checks)
    scores = {name: [row.checks[name] for row in checked if name in row.checks] for name in names}
    return Quality(
        checked=len(checked),
        passed=passed,
        share=passed / len(checked),
        scores={name: sum(values) / len(values) for name, values in scores.items()},
    )


def _throughput(rows: Sequence[Row]) -> float | None:
    """Output tokens per second of the time in which at least one of `rows` was in flight."""
    busy_s, until_s = 0.0, 0.0
    for start_s, end_s in sorted((row.started_s, row.started_s + (row.e2e_s or 0.0)) for row in rows):
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return sum(row.output_tokens for row in rows) / busy_s if busy_s > 0 else None


_Pair = tuple[int, Row, Row]
_Quantity = Callable[[Row], float | None]


def compare(cases: Sequence[Case], mode: str, prices: Prices, *, seed: int) -> Comparison:
    """`mode` against plain over the cases that have both."""
    pairs = [
        (case.index, case.rows[PLAIN], case.rows[mode]) for case in cases if PLAIN in case.rows and mode in case.rows
    ]
    greedy = [(plain, other) for _, plain, other in pairs if plain.request.get("temperature") == 0]
    faster = [(other.e2e_s or 0.0) < (plain.e2e_s or 0.0) for _, plain, other in pairs]
    return Comparison(
        pairs=len(pairs),
        requests=len({index for index, _, _ in pairs}),
        faster_share=sum(faster) / len(faster) if faster else None,
        parity_compared=len(greedy),
        parity_equal=sum(plain.text_hash == other.text_hash for plain, other in greedy),
        **_intervals(pairs, prices, seed),
    )


def _intervals(pairs: Sequence[_Pair], prices: Prices, seed: int) -> dict[str, Any]:
    """All differences by name, each resampled over the pairs that have the quantity."""
    differences: dict[str, tuple[_Quantity, Callable[[Floats, Floats], Statistic]]] = {
        "ttft_s": (lambda row: row.ttft_s, stats.mean_difference),
        "tpot_s": (lambda row: row.tpot_s, stats.mean_difference),
        "e2e_s": (lambda row: row.e2e_s, stats.mean_difference),
        "speed_up": (lambda row: row.e2e_s, stats.ratio_of_means),
        "p95_reduction": (lambda row: row.e2e_s, lambda plain, other: stats.quantile_reduction(plain, other, 0.95)),
        "cost_increase": (prices.cost, stats.relative_increase),
        "quality": (lambda row: None if row.passed is None else float(row.passed), stats.mean_difference),
    }
    made: dict[tuple[int, ...], dict[str, Statistic]] = defaultdict(dict)
    for name, (of, statistic) in differences.items():
        values = [(index, of(plain), of(other)) for index, plain, other in pairs]
        kept = [(index, one, two) for index, one, two in values if one is not None and two is not None]
        clusters = tuple(index for index, _, _ in kept)
        made[clusters][name] = statistic(np.array([one for _, one, _ in kept]), np.array([two for _, _, two in kept]))
    return {
        name: interval
        for clusters, statistics in made.items()  # those with the same clusters share their draws
        for name, interval in zip(statistics, stats.bootstrap([*statistics.values()], clusters, seed=seed), strict=True)
    }
