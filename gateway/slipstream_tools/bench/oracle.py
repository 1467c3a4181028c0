"""Routed mode against an oracle that knows, for each request, the fastest of the recorded modes."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from slipstream_core.types import Arm, LengthBin

from slipstream_tools.bench.arrivals import Load
from slipstream_tools.bench.cases import Case, by_place
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.statistics import (
    Floats,
    bootstrap,
    rank_correlation,
    ratio_of_means,
    relative_increase,
    seed_of,
)
from slipstream_tools.bench.summary import (
    ALL,
    LENGTHS,
    PLAIN,
    ROUTED,
    SPECULATIVE,
    Interval,
    LengthFit,
    OracleFigures,
    Worst,
)

FIRST_REQUESTS = 200
MIN_CLASS = 10
"""Classes with fewer requests are not considered for the worst class."""


class Known(NamedTuple):
    """One request at one load with one draft: its answers by mode, mean times over the rounds, and the draft length of
    each speculative mode, in the order of the run's settings. `times_s` leaves out routed; `case` is its first."""

    case: Case
    rows: Mapping[str, Sequence[Row]]
    times_s: Mapping[str, float]
    draft_lengths: Mapping[str, int]
    output_tokens: float

    @property
    def plain_s(self) -> float:
        return self.times_s[PLAIN]

    @property
    def oracle_s(self) -> float:
        return min(self.times_s.values())

    def speculative_s(self, draft_length: int | None = None) -> float:
        """The time of the mode with the draft length nearest to `draft_length`; without it, of `speculative` or the
        first speculative mode."""
        lengths = self.draft_lengths
        if draft_length is None:
            return self.times_s[SPECULATIVE if SPECULATIVE in lengths else next(iter(lengths))]
        return self.times_s[min(lengths, key=lambda mode: abs(lengths[mode] - draft_length))]


class Routed(NamedTuple):
    """One routed answer and the recorded times of its request."""

    case: Case
    row: Row
    known: Known


def known_times(cases: Sequence[Case], modes: Sequence[str]) -> dict[int, Known]:
    """By request index, for one draft and concurrency: requests that plain and a speculative mode both answered.

    `modes` is the order of the run's settings: rows come in a random order per request, in which "always speculative"
    would mean another draft length each time.
    """
    first: dict[int, Case] = {}
    gathered: dict[int, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        first.setdefault(case.index, case)
        for mode, row in case.rows.items():
            gathered[case.index][mode].append(row)
    return {
        index: _known(first[index], {mode: rows[mode] for mode in modes if mode in rows})
        for index, rows in gathered.items()
        if PLAIN in rows and rows.keys() - {PLAIN, ROUTED}
    }


def _known(case: Case, rows: Mapping[str, Sequence[Row]]) -> Known:
    times_s = {mode: fmean(row.e2e_s or 0.0 for row in some) for mode, some in rows.items() if mode != ROUTED}
    lengths = {mode: rows[mode][0].draft_length or 0 for mode in times_s if mode != PLAIN}
    return Known(case, rows, times_s, lengths, fmean(row.output_tokens for row in rows[PLAIN]))


def oracle_of(cases: Sequence[Case], modes: Sequence[str], *, seed: int) -> Iterator[OracleFigures]:
    """One for each draft and concurrency at which plain, a speculative mode and routed all have answers."""
    for (draft, concurrency), members in by_place(cases).items():
        known = known_times(members, modes)
        answered = [case for case in members if ROUTED in case.rows and case.index in known]
        if routed := [Routed(case, case.rows[ROUTED], known[case.index]) for case in answered]:
            yield _figures(routed, draft, concurrency, seed)


def _figures(routed: Sequence[Routed], draft: str | None, concurrency: Load, seed: int) -> OracleFigures:
    first, warm = routed[:FIRST_REQUESTS], routed[FIRST_REQUESTS:]
    return OracleFigures(
        concurrency=concurrency,
        draft=draft,
        requests=len(routed),
        first_requests=len(first),
        oracle_saving_s=sum(item.known.plain_s - item.known.oracle_s for item in routed),
        captured=captured(routed, _routed_s),
        captured_first=captured(first, _routed_s),
        captured_warm=captured(warm, _routed_s),
        captured_by_choice=captured(routed, chosen_s),
        # The seed of the same figure in the table of all classes: one figure has one interval.
        plain_over_routed=_ratio(
            routed, lambda item: item.known.plain_s, seed_of(seed, draft, concurrency, ALL, ALL, ROUTED)
        ),
        speculative_over_routed=_ratio(routed, lambda item: item.known.speculative_s(), seed),
        worst_class=worst_class(routed, _routed_s, seed),
        rank_correlation=_correlation(routed),
        rank_correlation_warm=_correlation(warm),
        lengths=_lengths(routed),
        lengths_warm=_lengths(warm),
    )


def _routed_s(item: Routed) -> float:
    return item.row.e2e_s or 0.0


def chosen_s(item: Routed) -> float:
    """The recorded time of the arm that the routed answer took."""
    speculated = item.row.arm == Arm.SPECULATIVE
    return item.known.speculative_s(item.row.draft_length) if speculated else item.known.plain_s


def captured(routed: Sequence[Routed], time_s: Callable[[Routed], float]) -> float | None:
    """Σ(plain − time) / Σ(plain − oracle); None where the oracle saves nothing."""
    possible_s = sum(item.known.plain_s - item.known.oracle_s for item in routed)
    saved_s = sum(item.known.plain_s - time_s(item) for item in routed)
    return saved_s / possible_s if possible_s > 0 else None


def _ratio(routed: Sequence[Routed], time_s: Callable[[Routed], float], seed: int) -> Interval | None:
    ratio = ratio_of_means(_times(routed, time_s), _times(routed, _routed_s))
    return bootstrap([ratio], [item.case.index for item in routed], seed=seed)[0]


def _times(routed: Sequence[Routed], time_s: Callable[[Routed], float]) -> Floats:
    return np.array([time_s(item) for item in routed])


def worst_class(routed: Sequence[Routed], time_s: Callable[[Routed], float], seed: int) -> Worst | None:
    """The class with the highest time relative to plain, of those with enough requests."""
    classes: dict[str, list[Routed]] = defaultdict(list)
    for item in routed:
        classes[item.case.request_class].append(item)
    found = []
    for name, items in classes.items():
        if len({item.case.index for item in items}) < MIN_CLASS:
            continue
        increase = relative_increase(_times(items, lambda item: item.known.plain_s), _times(items, time_s))
        clusters = [item.case.index for item in items]
        [slow_down] = bootstrap([increase], clusters, seed=zlib.crc32(f"{seed}/{name}".encode()))
        if slow_down is not None:
            found.append(Worst(request_class=name, slow_down=slow_down, pairs=len(items)))
    return max(found, key=lambda worst: worst.slow_down.estimate, default=None)


def _correlation(routed: Sequence[Routed]) -> float | None:
    """Rank correlation of predicted and measured saving, where the gateway predicted one."""
    predicted = [item for item in routed if item.row.saving_ms is not None]
    actual = [item.known.plain_s - item.known.speculative_s(item.row.draft_length or None) for item in predicted]
    return rank_correlation([item.row.saving_ms or 0.0 for item in predicted], actual)


def _lengths(routed: Sequence[Routed]) -> tuple[LengthFit, ...]:
    """The length bin of the routed class against that of the plain answer; empty where classes have none."""
    classes = [(item.row.request_class or "", str(LengthBin.of(item.known.output_tokens))) for item in routed]
    pairs = [(name.partition("/")[2], actual) for name, actual in classes if "/" in name]
    return tuple(_bin(name, pairs) for name in LENGTHS) if pairs else ()


def _bin(name: str, pairs: Sequence[tuple[str, str]]) -> LengthFit:
    right = sum(predicted == actual == name for predicted, actual in pairs)
    predicted = sum(predicted == name for predicted, _ in pairs)
    actual = sum(actual == name for _, actual in pairs)
    return LengthFit(
        length=name,
        precision=right / predicted if predicted else None,
        recall=right / actual if actual else None,
        predicted=predicted,
        actual=actual,
    )
