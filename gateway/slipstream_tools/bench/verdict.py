"""Whether a class should speculate: the measured difference against thresholds that were set in advance.

The rule, for one class at one concurrency, by paired differences with 95 % intervals:

- fewer than `min_samples` distinct requests → not enough data: rounds of one are no independent evidence;
- `do not`, where an interval excludes success: the p95 reduction lies wholly below its threshold, or the quality lost
  or the cost added lies wholly above its own;
- `speculate`, where all estimates meet their thresholds and the p95 reduction's interval lies wholly above 0;
- anything else → not enough data: an interval spans its threshold, and more requests would settle it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from slipstream_tools.bench.modes import PLAIN, ROUTED, parse_mode
from slipstream_tools.bench.summary import ALL, Cell, Comparison, Interval, Outcome, Thresholds, Verdict

SPECULATE: Outcome = "speculate"
DO_NOT: Outcome = "do not"
NOT_ENOUGH: Outcome = "not enough data"
_ORDER: tuple[Outcome, ...] = (SPECULATE, NOT_ENOUGH, DO_NOT)


class _Candidate(NamedTuple):
    """One way to speculate in a class, judged."""

    cell: Cell
    mode: str
    comparison: Comparison
    verdict: Outcome
    reason: str


def verdicts_of(cells: Sequence[Cell], thresholds: Thresholds) -> tuple[Verdict, ...]:
    """One verdict per class and concurrency, by the best of its speculative modes and drafts; by routed where no mode
    speculates throughout. Empty without plain."""
    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        if cell.length == ALL and cell.request_class != ALL:
            groups.setdefault((cell.concurrency, cell.request_class), []).append(cell)
    return tuple(verdict for group in groups.values() for verdict in _best(group, thresholds))


def judge(comparison: Comparison, thresholds: Thresholds) -> tuple[Outcome, str]:
    """The verdict on one comparison, and its reason as one sentence."""
    reduction = comparison.p95_reduction
    if comparison.requests < thresholds.min_samples or reduction is None:
        return NOT_ENOUGH, f"{comparison.requests} requests were compared, {thresholds.min_samples} are asked for"
    checks = list(_checks(comparison, reduction, thresholds))
    for outcome in (DO_NOT, NOT_ENOUGH):
        if reasons := [reason for found, reason in checks if found == outcome]:
            return outcome, reasons[0]
    return SPECULATE, "; ".join(reason for _, reason in checks)


def _checks(comparison: Comparison, reduction: Interval, thresholds: Thresholds) -> Iterator[tuple[Outcome, str]]:
    """What each threshold says by itself, in order of weight."""
    wanted = thresholds.p95_reduction
    shown = f"the p95 falls by {_percent(reduction)}, {wanted:.0%} is asked for"
    if reduction.high < wanted:
        yield DO_NOT, shown
    elif reduction.estimate < wanted:
        yield NOT_ENOUGH, f"{shown}, which the interval spans"
    elif reduction.low <= 0:
        yield NOT_ENOUGH, f"{shown}, but the interval does not exclude that it rises"
    else:
        yield SPECULATE, shown
    if (quality := comparison.quality) is not None:
        lost = Interval(estimate=-quality.estimate, low=-quality.high, high=-quality.low)
        yield _ceiling("the share of passed checks falls", lost, thresholds.quality_loss)
    if (cost := comparison.cost_increase) is not None:
        yield _ceiling("the cost rises", cost, thresholds.cost_increase)


def _ceiling(what: str, value: Interval, limit: float) -> tuple[Outcome, str]:
    shown = f"{what} by {_percent(value)}, at most {limit:.0%} is allowed"
    if value.low > limit:
        return DO_NOT, shown
    if value.estimate > limit:
        return NOT_ENOUGH, f"{shown}, which the interval spans"
    return SPECULATE, shown


def _best(cells: Sequence[Cell], thresholds: Thresholds) -> Iterator[Verdict]:
    candidates = list(_candidates(cells, thresholds, routed=False)) or list(_candidates(cells, thresholds, routed=True))
    if not candidates:
        return
    best = min(candidates, key=lambda one: (_ORDER.index(one.verdict), -_speed_up(one.comparison)))
    yield Verdict(
        request_class=best.cell.request_class,
        concurrency=best.cell.concurrency,
        mode=best.mode,
        draft=best.cell.draft,
        draft_length=parse_mode(best.mode).draft_length,
        verdict=best.verdict,
        reason=best.reason,
        pairs=best.comparison.pairs,
    )


def _candidates(cells: Iterable[Cell], thresholds: Thresholds, *, routed: bool) -> Iterator[_Candidate]:
    for cell in cells:
        for mode, comparison in cell.comparisons.items():
            if mode != PLAIN and (mode == ROUTED) == routed:
                yield _Candidate(cell, mode, comparison, *judge(comparison, thresholds))


def _speed_up(comparison: Comparison) -> float:
    return comparison.speed_up.estimate if comparison.speed_up else 0.0


def _percent(value: Interval) -> str:
    return f"{_share(value.estimate)} ({_share(value.low)} to {_share(value.high)})"


def _share(value: float) -> str:
    return f"{round(value, 3) + 0.0:.1%}"  # no negative zero
