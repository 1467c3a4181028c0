"""Verdicts: whether a class should speculate, by the measured difference against thresholds set in advance.

The rule, for one class at one concurrency, by paired differences with 95 % intervals:

- fewer than `min_samples` distinct requests → not enough data: rounds of one request are not independent;
- `do not`, where an interval excludes success: the p95 reduction lies wholly below its threshold, or the quality lost
  or the cost added lies wholly above its own;
- `speculate`, where all estimates meet their thresholds and the p95 reduction's interval lies wholly above 0;
- anything else → not enough data: an interval spans its threshold, and more requests would settle it.

`--expect` checks a run against expected verdicts, for CI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream_core.errors import CommandError

from slipstream_tools.bench.arrivals import Load, load_name
from slipstream_tools.bench.formats import interval, percent
from slipstream_tools.bench.plan import parse_mode
from slipstream_tools.bench.summary import (
    ALL,
    ROUTED,
    Cell,
    ClassVerdict,
    Comparison,
    Interval,
    Judgement,
    Summary,
    Thresholds,
    entries_of,
)

SPECULATE: Judgement = "speculate"
DO_NOT: Judgement = "do not"
NOT_ENOUGH: Judgement = "not enough data"
_ORDER: tuple[Judgement, ...] = (SPECULATE, NOT_ENOUGH, DO_NOT)


def verdicts_of(cells: Sequence[Cell], thresholds: Thresholds) -> tuple[ClassVerdict, ...]:
    """One verdict per class and concurrency, by the best of its speculative modes and drafts; by routed where no mode
    speculates throughout. Empty without plain."""
    groups: dict[tuple[Load, str], list[Cell]] = {}
    for cell in cells:
        if cell.length == ALL and cell.request_class != ALL:
            groups.setdefault((cell.concurrency, cell.request_class), []).append(cell)
    return tuple(verdict for group in groups.values() for verdict in _best(group, thresholds))


def judge(comparison: Comparison, thresholds: Thresholds) -> tuple[Judgement, str]:
    """The verdict on one comparison, and its reason as one sentence."""
    reduction = comparison.p95_reduction
    if comparison.requests < thresholds.min_samples or reduction is None:
        compared = "1 request was" if comparison.requests == 1 else f"{comparison.requests} requests were"
        return NOT_ENOUGH, f"{compared} compared, {thresholds.min_samples} are required"
    checks = list(_checks(comparison, reduction, thresholds))
    for outcome in (DO_NOT, NOT_ENOUGH):
        if reasons := [reason for found, reason in checks if found == outcome]:
            return outcome, reasons[0]
    return SPECULATE, "; ".join(reason for _, reason in checks)


def _checks(comparison: Comparison, reduction: Interval, thresholds: Thresholds) -> Iterator[tuple[Judgement, str]]:
    """The judgement of each threshold by itself, the most important first."""
    wanted = thresholds.p95_reduction
    if reduction.estimate < 0:
        shown = f"the p95 rises by {interval(_negated(reduction), percent)}, a fall of {wanted:.0%} is required"
    else:
        shown = f"the p95 falls by {interval(reduction, percent)}, {wanted:.0%} is required"
    if reduction.high < wanted:
        yield DO_NOT, shown
    elif reduction.estimate < wanted:
        yield NOT_ENOUGH, f"{shown}, which the interval spans"
    elif reduction.low <= 0:
        yield NOT_ENOUGH, f"{shown}, but the interval includes an increase"
    else:
        yield SPECULATE, shown
    if (quality := comparison.quality) is not None:
        yield _ceiling("the share of passed checks falls", _negated(quality), thresholds.quality_loss)
    if (cost := comparison.cost_increase) is not None:
        yield _ceiling("the cost rises", cost, thresholds.cost_increase)


def _negated(value: Interval) -> Interval:
    return Interval(estimate=-value.estimate, low=-value.high, high=-value.low)


def _ceiling(what: str, value: Interval, limit: float) -> tuple[Judgement, str]:
    shown = f"{what} by {interval(value, percent)}, at most {limit:.0%} is allowed"
    if value.low > limit:
        return DO_NOT, shown
    if value.estimate > limit:
        return NOT_ENOUGH, f"{shown}, which the interval spans"
    return SPECULATE, shown


def _best(cells: Sequence[Cell], thresholds: Thresholds) -> Iterator[ClassVerdict]:
    """The verdict of the best candidate: the better verdict, then the larger speed-up."""
    compared = [entry for entry in entries_of(cells) if entry.mode in entry.cell.comparisons]
    candidates = [entry for entry in compared if entry.mode != ROUTED] or compared
    judged = [(entry, *judge(entry.compared, thresholds)) for entry in candidates]
    judged.sort(key=lambda one: (_ORDER.index(one[1]), -one[0].compared.rank))
    for entry, verdict, reason in judged[:1]:
        yield ClassVerdict(
            request_class=entry.cell.request_class,
            concurrency=entry.cell.concurrency,
            mode=entry.mode,
            draft=entry.cell.draft,
            draft_length=parse_mode(entry.mode).draft_length,
            verdict=verdict,
            reason=reason,
            pairs=entry.compared.pairs,
        )


NOT_HARMED, POLICY = "not-harmed", "policy"
HARM = 0.02
"""A class is harmed where routed's mean E2E is more than this share above plain's and its interval excludes plain's."""
_VERDICTS = {"speculate": SPECULATE, "do-not": DO_NOT, "not-enough-data": NOT_ENOUGH}


def check_expectation(text: str) -> str:
    """`text`, where it is a valid expectation. Raises `CommandError`."""
    name, _, verdict = text.rpartition("=")
    if text in (NOT_HARMED, POLICY) or (name and verdict in _VERDICTS):
        return text
    raise CommandError(
        f"--expect is {NOT_HARMED}, {POLICY} or CLASS=VERDICT with a verdict of {', '.join(_VERDICTS)}, got {text!r}",
        exit_code=2,
    )


def unmet(summary: Summary, expectations: Sequence[str]) -> list[str]:
    """One sentence for each expectation that does not hold."""
    checks = {NOT_HARMED: _harmed, POLICY: _against_policy}
    return [
        f"{text}: {line}"
        for text in expectations
        for line in (checks[text](summary) if text in checks else _other_verdict(summary, *text.rpartition("=")[::2]))
    ]


def _harmed(summary: Summary) -> Iterator[str]:
    """Classes, and all of them together, in which routed is slower than plain."""
    compared = [cell for cell in _by_class(summary) if ROUTED in cell.comparisons]
    if not compared:
        yield "the modes plain and routed were not both measured"
    for cell in compared:
        found = cell.comparisons[ROUTED].speed_up
        if found is not None and 1 / found.estimate > 1 + HARM and found.high < 1:
            yield (
                f"routed takes {1 / found.estimate - 1:.1%} longer than plain in the class {cell.request_class} "
                f"at {load_name(cell.concurrency)}"
            )


def _against_policy(summary: Summary) -> Iterator[str]:
    """Classes that mostly speculate when routed, against their verdict."""
    routed = {
        (cell.draft, cell.concurrency, cell.request_class): cell.modes[ROUTED].speculated_share or 0.0
        for cell in _by_class(summary)
        if ROUTED in cell.modes
    }
    if not routed:
        yield "the mode routed was not measured"
    for one in summary.verdicts:
        share = routed.get((one.draft, one.concurrency, one.request_class), 0.0)
        if share > 0.5 and one.verdict == DO_NOT:
            yield (
                f"{share:.0%} of the class {one.request_class} speculate at {load_name(one.concurrency)}, "
                f"and should not: {one.reason}"
            )


def _other_verdict(summary: Summary, name: str, wanted: str) -> Iterator[str]:
    verdicts = [one for one in summary.verdicts if one.request_class == name]
    if not verdicts:
        yield "the class has no verdict"
    for one in verdicts:
        if one.verdict != _VERDICTS[wanted]:
            yield f"at {load_name(one.concurrency)} it is '{one.verdict}': {one.reason}"


def _by_class(summary: Summary) -> Iterator[Cell]:
    return (cell for cell in summary.cells if cell.length == ALL)
