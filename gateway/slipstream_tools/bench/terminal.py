"""What `slipstream bench` prints: its progress, and the summary as text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from slipstream_tools.bench.summary import (
    ALL,
    Cell,
    Comparison,
    Interval,
    ModeFigures,
    OracleFigures,
    Summary,
)

_REDRAW_S = 0.1
_LINE_S = 30.0
_BAR_CHARS = 28
_HEAD = (
    *("class", "length", "mode", "n", "TTFT p50", "TPOT p50", "E2E mean", "p50", "p95", "p99"),
    *("speed-up", "faster", "α", "tok/step", "cost/1k", "passed", "parity"),
)
_TEXT_COLUMNS = 3
_MISSING = "–"


class Progress:
    """The progress of `total` items; the remaining time is estimated from this session's pace."""

    def __init__(self, *, total: int, stream: TextIO, label: str = "") -> None:
        self._total = total
        self._stream = stream
        self._label = label
        self._done = 0
        self._tty = stream.isatty()
        self._started_s = self._drawn_s = time.monotonic()
        self._drawn_tenth = 0

    def advance(self) -> None:
        """Count one finished item."""
        self._done += 1
        now_s = time.monotonic()
        if self._tty:
            if now_s - self._drawn_s >= _REDRAW_S or self._done == self._total:
                self._drawn_s = now_s
                self._stream.write(f"\r{self._bar()} {self._text(now_s)}\x1b[K")
                self._stream.flush()
            return
        tenth = self._done * 10 // self._total
        if tenth > self._drawn_tenth or now_s - self._drawn_s >= _LINE_S:
            self._drawn_tenth, self._drawn_s = tenth, now_s
            print(f"slipstream: {self._text(now_s)}", file=self._stream, flush=True)

    def close(self) -> None:
        """End the bar's line."""
        if self._tty and self._done:
            print(file=self._stream, flush=True)

    def _bar(self) -> str:
        filled = self._done * _BAR_CHARS // self._total
        return f"[{'█' * filled}{'·' * (_BAR_CHARS - filled)}]"

    def _text(self, now_s: float) -> str:
        left_s = (now_s - self._started_s) / self._done * (self._total - self._done)
        label = f"{self._label}: " if self._label else ""
        return f"{label}{self._done} of {self._total}, {clock(left_s)} left"


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`, or `0:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def as_text(summary: Summary) -> str:
    """Tables by draft and concurrency, then the oracle's figures, verdicts and warnings."""
    lines: list[str] = []
    for draft, concurrency in dict.fromkeys((cell.draft, cell.concurrency) for cell in summary.cells):
        cells = [cell for cell in summary.cells if (cell.draft, cell.concurrency) == (draft, concurrency)]
        lines += ["", f"{_block(draft, concurrency)} (times in ms)", *_table(cells)]
    lines += _drafts(summary)
    for figures in summary.oracle:
        lines += ["", f"{_block(figures.draft, figures.concurrency)}: routed against the per-request oracle"]
        lines += [f"  {line}" for line in _oracle(figures)]
    if summary.verdicts:
        lines += ["", "verdicts"]
        lines += columns(
            [
                (
                    f"  {one.request_class}",
                    f"at {one.concurrency}",
                    one.verdict,
                    f"{_way(one.mode, one.draft)}: {one.reason}",
                )
                for one in summary.verdicts
            ],
            text_columns=4,
        )
    lines += [""] * bool(summary.warnings) + [f"warning: {warning}" for warning in summary.warnings]
    return "\n".join(lines[1:])


def _drafts(summary: Summary) -> list[str]:
    """Drafts and draft lengths side by side, the fastest first, where there are several drafts."""
    if len(summary.run.drafts) < 2:
        return []
    whole = [cell for cell in summary.cells if cell.request_class == cell.length == ALL]
    ways = [(cell, mode, compared) for cell in whole for mode, compared in cell.comparisons.items()]
    ways.sort(key=lambda way: (way[0].concurrency, -(way[2].speed_up.estimate if way[2].speed_up else 0.0)))
    rows: list[Sequence[str]] = [("  draft", "at", "mode", "speed-up", "p95 falls by", "α")]
    for cell, mode, compared in ways:
        drafts = cell.modes[mode].speculation
        fall = _share(compared.p95_reduction.estimate if compared.p95_reduction else None)
        acceptance = _number(drafts.acceptance if drafts else None)
        where = (f"  {cell.draft}", str(cell.concurrency), mode)
        rows.append((*where, _interval(compared.speed_up), fall, acceptance))
    return ["", "drafts, the fastest first", *columns(rows, text_columns=3)]


def columns(rows: Sequence[Sequence[str]], *, text_columns: int) -> list[str]:
    """Rows with aligned columns: the first `text_columns` to the left, numbers to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if index < text_columns else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _block(draft: str | None, concurrency: int) -> str:
    return f"{f'draft {draft}, ' if draft else ''}concurrency {concurrency}"


def _way(mode: str | None, draft: str | None) -> str:
    return f"{mode} with {draft}" if draft else str(mode)


def _table(cells: Sequence[Cell]) -> list[str]:
    rows: list[Sequence[str]] = [_HEAD]
    for cell in cells:
        lengths = [other for other in cells if other.request_class == cell.request_class and other.length != ALL]
        if cell.length != ALL and len(lengths) == 1:
            continue  # its only length says the same as all of them
        for mode, figures in cell.modes.items():
            rows.append(_row(cell, mode, figures, cell.comparisons.get(mode)))
    return columns(rows, text_columns=_TEXT_COLUMNS)


def _row(cell: Cell, mode: str, figures: ModeFigures, comparison: Comparison | None) -> tuple[str, ...]:
    e2e, drafts, quality = figures.e2e_s, figures.speculation, figures.quality
    return (
        *(cell.request_class, cell.length, mode, str(figures.answered)),
        _ms(figures.ttft_s.p50 if figures.ttft_s else None),
        _ms(figures.tpot_s.p50 if figures.tpot_s else None),
        *((_ms(e2e.mean), _ms(e2e.p50), _ms(e2e.p95), _ms(e2e.p99)) if e2e else (_MISSING,) * 4),
        _interval(comparison.speed_up) if comparison else "",
        _share(comparison.faster_share) if comparison else "",
        _number(drafts.acceptance if drafts else None),
        _number(drafts.tokens_per_step if drafts else None),
        f"{figures.cost_per_1000_tokens:.4g}" if figures.cost_per_1000_tokens is not None else _MISSING,
        f"{quality.passed}/{quality.checked}" if quality else _MISSING,
        f"{comparison.parity_equal}/{comparison.parity_compared}" if comparison and comparison.parity_compared else "",
    )


def _oracle(figures: OracleFigures) -> Iterator[str]:
    yield (
        f"share of the oracle's saving captured: {_share(figures.captured)} of all {figures.requests} requests, "
        f"{_share(figures.captured_first)} of the first {figures.first_requests}, "
        f"{_share(figures.captured_warm)} after them; by choice alone {_share(figures.captured_by_choice)}"
    )
    yield f"mean E2E, plain ÷ routed {_interval(figures.plain_over_routed)}"
    yield f"mean E2E, speculative ÷ routed {_interval(figures.speculative_over_routed)}"
    if figures.worst_class is not None:
        slow = figures.worst_class.slow_down
        yield (
            f"worst class {figures.worst_class.request_class}: routed takes {slow.estimate:+.1%} "
            f"({slow.low:+.1%} to {slow.high:+.1%}) against plain"
        )
    yield (
        f"predicted with actual saving, rank correlation {_number(figures.rank_correlation)}, "
        f"warm {_number(figures.rank_correlation_warm)}"
    )
    for one in figures.lengths_warm or figures.lengths:
        yield (
            f"length {one.length}: precision {_share(one.precision)} of {one.predicted}, "
            f"recall {_share(one.recall)} of {one.actual}"
        )


def _ms(seconds: float | None) -> str:
    return f"{1000 * seconds:.1f}" if seconds is not None else _MISSING


def _share(share: float | None) -> str:
    return f"{share:.0%}" if share is not None else _MISSING


def _number(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else _MISSING


def _interval(value: Interval | None) -> str:
    return f"{value.estimate:.2f} ({value.low:.2f}–{value.high:.2f})" if value else _MISSING
