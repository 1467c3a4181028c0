"""The figures of each cell (class × length bin × concurrency × draft), per mode and against plain."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from slipstream_core.types import Arm

from slipstream_tools.bench.cases import Case, Prices
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.speculation import speculation
from slipstream_tools.bench.statistics import (
    Floats,
    Statistic,
    bootstrap,
    distribution,
    mean_difference,
    quantile_reduction,
    ratio_of_means,
    relative_increase,
)
from slipstream_tools.bench.summary import ALL, LENGTHS, PLAIN, Cell, Comparison, Interval, ModeFigures, Quality


class CellName(NamedTuple):
    """Selects the cases of a cell; `ALL` matches every class or length."""

    draft: str | None
    concurrency: int
    request_class: str
    length: str

    def takes(self, case: Case) -> bool:
        return (
            case.draft == self.draft
            and case.concurrency == self.concurrency
            and self.request_class in (ALL, case.request_class)
            and self.length in (ALL, case.length)
        )

    def seed(self, seed: int, mode: str) -> int:
        """A seed per cell, so that its intervals do not depend on the other cells."""
        return zlib.crc32(repr((seed, *self, mode)).encode())


def cells_of(
    cases: Sequence[Case],
    modes: Sequence[str],
    prices: Prices,
    *,
    seed: int,
    lengths: Sequence[str] = (ALL, *LENGTHS),
) -> tuple[Cell, ...]:
    """All cells that have a case, in the order of `Summary.cells`."""
    return tuple(_cell(name, members, modes, prices, seed) for name, members in _cell_members(cases, lengths))


def _cell_members(cases: Sequence[Case], lengths: Sequence[str]) -> Iterator[tuple[CellName, list[Case]]]:
    """Each cell's name and its cases."""
    blocks = list(dict.fromkeys((case.draft, case.concurrency) for case in cases))
    classes = [ALL, *sorted({case.request_class for case in cases})]
    for draft, concurrency in blocks:
        for request_class in classes:
            for length in lengths:
                name = CellName(draft, concurrency, request_class, length)
                if members := [case for case in cases if name.takes(case)]:
                    yield name, members


def _cell(name: CellName, cases: Sequence[Case], modes: Sequence[str], prices: Prices, seed: int) -> Cell:
    whole = name.request_class == ALL and name.length == ALL
    figures = {mode: _figures(mode, cases, prices, throughput=whole) for mode in modes}
    comparisons = {}
    if PLAIN in modes:
        for mode in modes:
            if mode != PLAIN:
                comparisons[mode] = compare(cases, mode, prices, seed=name.seed(seed, mode))
    return Cell(
        request_class=name.request_class,
        length=name.length,
        concurrency=name.concurrency,
        draft=name.draft,
        requests=len({case.index for case in cases}),
        modes=figures,
        comparisons=comparisons,
    )


def _figures(mode: str, cases: Sequence[Case], prices: Prices, *, throughput: bool) -> ModeFigures:
    rows = [case.rows[mode] for case in cases if mode in case.rows]
    costs = [prices.cost(row) for row in rows] if prices.known else []
    tokens = sum(row.output_tokens for row in rows)
    return ModeFigures(
        answered=len(rows),
        failed=sum(mode in case.failed for case in cases),
        ttft_s=distribution([row.ttft_s for row in rows if row.ttft_s is not None]),
        tpot_s=distribution([row.tpot_s for row in rows if row.tpot_s is not None]),
        e2e_s=distribution([row.e2e_s for row in rows if row.e2e_s is not None]),
        output_tokens=distribution([float(row.output_tokens) for row in rows]),
        speculated_share=sum(row.arm == Arm.SPECULATIVE for row in rows) / len(rows) if rows else None,
        speculation=speculation(rows),
        cost_per_response=sum(costs) / len(costs) if costs else None,
        cost_per_1000_tokens=1000 * sum(costs) / tokens if costs and tokens else None,
        quality=_quality(rows),
        throughput_tokens_per_s=_throughput(rows) if throughput else None,
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


def compare(cases: Sequence[Case], mode: str, prices: Prices, *, seed: int) -> Comparison:
    """`mode` against plain over the cases that have both."""
    pairs = [
        (case.index, case.rows[PLAIN], case.rows[mode]) for case in cases if PLAIN in case.rows and mode in case.rows
    ]
    greedy = [(plain, other) for _, plain, other in pairs if plain.request.get("temperature") == 0]
    faster = [(other.e2e_s or 0.0) < (plain.e2e_s or 0.0) for _, plain, other in pairs]
    intervals = _intervals(pairs, prices, seed)
    return Comparison(
        pairs=len(pairs),
        requests=len({index for index, _, _ in pairs}),
        ttft_s=intervals.get("ttft_s"),
        tpot_s=intervals.get("tpot_s"),
        e2e_s=intervals.get("e2e_s"),
        speed_up=intervals.get("speed_up"),
        p95_reduction=intervals.get("p95_reduction"),
        cost_increase=intervals.get("cost_increase"),
        quality=intervals.get("quality"),
        faster_share=sum(faster) / len(faster) if faster else None,
        parity_compared=len(greedy),
        parity_equal=sum(plain.text_hash == other.text_hash for plain, other in greedy),
    )


_Pair = tuple[int, Row, Row]


def _intervals(pairs: Sequence[_Pair], prices: Prices, seed: int) -> Mapping[str, Interval | None]:
    """All differences by name, each resampled over the pairs that have the quantity."""
    made: dict[tuple[int, ...], dict[str, Statistic]] = defaultdict(dict)
    clusters, plain, other = _columns(pairs, [(row.e2e_s, partner.e2e_s) for _, row, partner in pairs])
    _, plain_cost, other_cost = _columns(pairs, [(prices.cost(row), prices.cost(partner)) for _, row, partner in pairs])
    made[clusters] = {
        "e2e_s": mean_difference(plain, other),
        "speed_up": ratio_of_means(plain, other),
        "p95_reduction": quantile_reduction(plain, other, 0.95),
        "cost_increase": relative_increase(plain_cost, other_cost),
    }
    partial: dict[str, list[tuple[float | None, float | None]]] = {
        "ttft_s": [(row.ttft_s, partner.ttft_s) for _, row, partner in pairs],
        "tpot_s": [(row.tpot_s, partner.tpot_s) for _, row, partner in pairs],
        "quality": [(_passed(row), _passed(partner)) for _, row, partner in pairs],
    }
    for name, values in partial.items():
        clusters, plain, other = _columns(pairs, values)
        made[clusters][name] = mean_difference(plain, other)
    named: dict[str, Interval | None] = {}
    for clusters, statistics in made.items():
        named |= zip(statistics, bootstrap(list(statistics.values()), clusters, seed=seed), strict=True)
    return named


def _columns(
    pairs: Sequence[_Pair], values: Iterable[tuple[float | None, float | None]]
) -> tuple[tuple[int, ...], Floats, Floats]:
    """Request index, plain value and other value of the pairs that have both."""
    rows = [
        (pair[0], plain, other)
        for pair, (plain, other) in zip(pairs, values, strict=True)
        if plain is not None and other is not None
    ]
    clusters = tuple(index for index, _, _ in rows)
    return clusters, np.array([plain for _, plain, _ in rows]), np.array([other for _, _, other in rows])


def _passed(row: Row) -> float | None:
    return None if row.passed is None else float(row.passed)
