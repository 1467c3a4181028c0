"""The issue's figures from what was measured. No figure without `Passed`: a wrong kernel has no speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slipstream_kernels.spec_verify.benchmark.cases import Case, Kind
from slipstream_kernels.spec_verify.benchmark.checks import Passed
from slipstream_kernels.spec_verify.benchmark.records import Measured, Run, What

LARGE_BATCH = 64
"""From so many requests on, bytes are what counts."""
_MEGABYTE = 1e6
_NOT_MEASURED = "not measured"
_BASELINES = {
    What.EAGER: 10.0,
    What.COMPILED: 3.0,
    What.FLASHINFER: None,
    What.FLASHINFER_SOFTMAX: 2.0,
    What.FOUR_LAUNCHES: 1.5,
    What.FOUR_LAUNCHES_COPY: None,
}
"""The factor to reach over each; None: reported beside the one that has the goal."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line: what was asked, the goal, the worst and the best measured, and whether the worst reaches it."""

    what: str
    goal: str
    measured: str
    met: bool | None


def figures(run: Run, passed: Passed) -> list[Figure]:
    """The issue's table, filled from one run whose checks held."""
    return [
        _bandwidth_share(run, What.KERNEL, "bytes that must be read ÷ time ÷ copy bandwidth, B ≥ 64, one-hot"),
        _bandwidth_share(run, What.ALL_ROWS, "the same with every row read (bytes of all rows)"),
        _lazy(run),
        *(_speed_up(run, what, goal) for what, goal in _BASELINES.items()),
        _one_request(run),
        _memory(run),
    ]


def table(lines: Iterable[Figure]) -> str:
    """As Markdown."""
    verdicts = {True: "yes", False: "NO", None: "-"}
    rows = [f"| {line.what} | {line.goal} | {line.measured} | {verdicts[line.met]} |" for line in lines]
    return "\n".join(["| what | goal | measured | reached |", "|---|---|---|---|", *rows])


def cases_table(run: Run, passed: Passed) -> str:
    """One line per one-hot case of the kernel: microseconds, share of the copy bandwidth, lazy over all rows."""
    lines = [
        "| V | B | γ | α | accepted | lazy µs (quartiles) | of copy | all rows µs | of copy | lazy ÷ all | packed µs |",
        "|---" * 11 + "|",
    ]
    for one in _of(run, What.KERNEL):
        case, every = one.case, run.find(What.ALL_ROWS, one.case)
        line = (
            f"| {case.vocabulary:,} | {case.requests} | {case.draft_tokens} | {case.acceptance} "
            f"| {one.mean_accepted:.2f} | {_time(one)} | {_share(run, one):.0%} "
        )
        if every is None:
            line += "| - | - | - "
        else:
            ratio = one.time.median_us / every.time.median_us
            line += f"| {_time(every)} | {_share(run, every):.0%} | {ratio:.2f} "
        packed = run.find(What.PACKED, case)
        lines.append(line + (f"| {packed.time.median_us:.1f} |" if packed else "| - |"))
    return "\n".join(lines)


def baselines_table(run: Run, passed: Passed) -> str:
    """One line per case with baselines: microseconds of each, and how many times the kernel's."""
    head = ["V", "B", "γ", "α", What.KERNEL.value, *(what.value for what in _BASELINES)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for one in _of(run, What.KERNEL):
        others = [run.find(what, one.case) for what in _BASELINES]
        if not any(others):
            continue
        case = one.case
        cells = [f"{case.vocabulary:,}", str(case.requests), str(case.draft_tokens), str(case.acceptance), _time(one)]
        cells.extend(_compared(other, one) for other in others)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def kinds_table(run: Run, passed: Passed) -> str:
    """What has no goal: other kinds of drafts and requests."""
    lines = ["| kind | V | B | γ | α | accepted | kernel µs (quartiles) |", "|---|---|---|---|---|---|---|"]
    for one in run.measured:
        if one.what is What.KERNEL and one.case.kind is not Kind.ONE_HOT:
            case = one.case
            lines.append(
                f"| {case.kind.value} | {case.vocabulary:,} | {case.requests} | {case.draft_tokens} "
                f"| {case.acceptance} | {one.mean_accepted:.2f} | {_time(one)} |"
            )
    return "\n".join(lines)


def _compared(other: Measured | None, kernel: Measured) -> str:
    if other is None:
        return "-"
    return f"{other.time.median_us:.1f} ({other.time.median_us / kernel.time.median_us:.1f}×)"


def _of(run: Run, what: What) -> Iterator[Measured]:
    return (one for one in run.measured if one.what is what and one.case.kind is Kind.ONE_HOT)


def _share(run: Run, one: Measured) -> float:
    """Bytes over time over copy bandwidth. Reading all rows is its own task: then all of them count."""
    count = one.all_rows_bytes if one.what is What.ALL_ROWS else one.needed_bytes
    return count / (one.time.median_us * 1e-6) / run.copy_bandwidth


def _bandwidth_share(run: Run, what: What, name: str) -> Figure:
    shares = [(_share(run, one), one.case) for one in _of(run, what) if one.case.requests >= LARGE_BATCH]
    measured, worst = _range(shares, "{:.0%}")
    return Figure(what=name, goal="≥ 85 %", measured=measured, met=None if worst is None else worst >= 0.85)


def _lazy(run: Run) -> Figure:
    ratios = []
    for one in _of(run, What.KERNEL):
        every = run.find(What.ALL_ROWS, one.case)
        large = one.case.requests >= LARGE_BATCH
        if every is not None and large and (one.case.acceptance, one.case.draft_tokens) == (0.7, 4):
            ratios.append((one.time.median_us / every.time.median_us, one.case))
    measured, worst = _range([(-ratio, case) for ratio, case in ratios], "{:.2f}×")
    return Figure(
        what="lazy rows over reading all γ + 1 rows once, B ≥ 64, α = 0.7, γ = 4",
        goal="≤ 0.75×",
        measured=measured,
        met=None if worst is None else -worst <= 0.75,
    )


def _speed_up(run: Run, what: What, goal: float | None) -> Figure:
    factors = []
    for one in _of(run, what):
        kernel = run.find(What.KERNEL, one.case)
        if kernel is not None:
            factors.append((one.time.median_us / kernel.time.median_us, one.case))
    measured, worst = _range(factors, "{:.1f}×")
    return Figure(
        what=f"against {what.value}",
        goal="reported" if goal is None else f"≥ {goal:g}×",
        measured=measured,
        met=None if worst is None or goal is None else worst >= goal,
    )


def _one_request(run: Run) -> Figure:
    times = [(-one.time.median_us, one.case) for one in _of(run, What.KERNEL) if one.case.requests == 1]
    measured, worst = _range(times, "{:.1f} µs")
    return Figure(what="B = 1", goal="≤ 12 µs", measured=measured, met=None if worst is None else -worst <= 12)


def _memory(run: Run) -> Figure:
    sizes = [(-one.bytes / _MEGABYTE, one.case) for one in run.memory]
    measured, worst = _range(sizes, "{:.2f} MB")
    return Figure(
        what="extra GPU memory, B = 128", goal="≤ 1 MB", measured=measured, met=None if worst is None else -worst <= 1
    )


def _range(values: Sequence[tuple[float, Case]], text: str) -> tuple[str, float | None]:
    """The worst (smallest) value and where, and the best. Where less is better, values come negated."""
    if not values:
        return _NOT_MEASURED, None
    worst, case = min(values, key=lambda pair: pair[0])
    best = max(value for value, _ in values)
    where = f"V {case.vocabulary:,}, B {case.requests}, γ {case.draft_tokens}, α {case.acceptance}"
    return f"{text.format(abs(worst))} at worst ({where}), {text.format(abs(best))} at best", worst


def _time(one: Measured) -> str:
    return f"{one.time.median_us:.1f} ({one.time.low_us:.1f}-{one.time.high_us:.1f})"
