"""What `slipstream bench` prints: its progress, and the summary as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from slipstream_tools.bench.arrivals import Load, load_name
from slipstream_tools.bench.formats import NONE, interval, money, percent, plain
from slipstream_tools.bench.summary import ALL, ClassVerdict, Distribution, Interval, Summary, distinct, entries_of
from slipstream_tools.bench.tables import Columns, Table, columns, entry_table, forecast_tables, oracle_table

_REDRAW_S = 0.1
_LINE_S = 30.0
_BAR_CHARS = 28


class Progress:
    """The progress of `total` items; the remaining time is estimated from this session's pace."""

    def __init__(self, *, total: int, stream: TextIO, label: str = "") -> None:
        self._total = total
        self._stream = stream
        self._label = f"{label}: " if label else ""
        self._done = 0
        self._tty = stream.isatty()
        self._started_s = self._drawn_s = time.monotonic()

    def advance(self) -> None:
        """Count one finished item."""
        self._done += 1
        now_s = time.monotonic()
        tenths = (self._done - 1) * 10 // self._total, self._done * 10 // self._total
        is_due = self._done == self._total if self._tty else tenths[0] < tenths[1]
        if not is_due and now_s - self._drawn_s < (_REDRAW_S if self._tty else _LINE_S):
            return
        self._drawn_s = now_s
        left_s = (now_s - self._started_s) / self._done * (self._total - self._done)
        text = f"{self._label}{self._done} of {self._total}, {clock(left_s)} left"
        filled = self._done * _BAR_CHARS // self._total
        bar = f"\r[{'█' * filled}{'·' * (_BAR_CHARS - filled)}] {text}\x1b[K"
        print(bar if self._tty else f"slipstream: {text}\n", end="", file=self._stream, flush=True)

    def close(self) -> None:
        """End the bar's line."""
        if self._tty and self._done:
            print(file=self._stream, flush=True)


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`, or `0:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _ms(quantity: Distribution | None, which: str) -> str:
    return f"{1000 * getattr(quantity, which):.1f}" if quantity else NONE


_COLUMNS: Columns = {
    "n": lambda entry: str(entry.figures.answered),
    "TTFT p50": lambda entry: _ms(entry.figures.ttft_s, "p50"),
    "TPOT p50": lambda entry: _ms(entry.figures.tpot_s, "p50"),
    "E2E mean": lambda entry: _ms(entry.figures.e2e_s, "mean"),
    "p50": lambda entry: _ms(entry.figures.e2e_s, "p50"),
    "p95": lambda entry: _ms(entry.figures.e2e_s, "p95"),
    "p99": lambda entry: _ms(entry.figures.e2e_s, "p99"),
    "speed-up": lambda entry: interval(entry.compared.speed_up),
    "faster": lambda entry: percent(entry.compared.faster_share, 0),
    "α": lambda entry: plain(entry.drafts.acceptance),
    "tok/step": lambda entry: plain(entry.drafts.tokens_per_step),
    "cost/1k": lambda entry: money(entry.figures.cost_per_1000_tokens),
    "passed": lambda entry: f"{checks.passed}/{checks.checked}" if (checks := entry.figures.quality) else NONE,
    "parity": lambda entry: entry.parity,
}


def as_text(summary: Summary) -> str:
    """Tables by draft and concurrency, then verdicts and warnings."""
    blocks: list[list[str]] = []
    for draft, concurrency, part in summary.parts():
        place = _place(draft, concurrency)
        shown = entries_of(distinct(part.cells))
        blocks.append(entry_table(f"{place} (times in ms)", shown, _COLUMNS).lines())
        for figures in part.oracle:
            tables = oracle_table(figures), *forecast_tables(figures)
            blocks += [table._replace(caption=f"{place}: {table.caption}").lines() for table in tables]
    blocks.append(_saved(summary).lines())
    if len(summary.run.drafts) > 1:
        blocks.append(_drafts(summary).lines())
    if summary.verdicts:
        blocks.append(["verdicts", *columns([_verdict(one) for one in summary.verdicts], text_columns=4)])
    blocks.append([f"warning: {warning}" for warning in summary.warnings])
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _verdict(one: ClassVerdict) -> Sequence[str]:
    way = f"{one.mode} with {one.draft}" if one.draft else one.mode
    return f"  {one.request_class}", f"at {one.concurrency}", one.verdict, f"{way}: {one.reason}"


def _saved(summary: Summary) -> Table:
    """How much of the servers' time, or of its cost where prices are known, each mode saved against plain."""
    rows = [
        (_place(entry.cell.draft, entry.cell.concurrency), entry.mode, _interval_saved(entry.compared.cost_increase))
        for entry in entries_of(cell for cell in summary.cells if cell.request_class == cell.length == ALL)
        if entry.compared.cost_increase is not None
    ]
    what = "cost" if summary.run.prices else "time"
    return Table(("", "mode", "saved"), rows, f"share of the servers' {what} saved against plain", 2)


def _interval_saved(increase: Interval) -> str:
    saved = Interval(estimate=-increase.estimate, low=-increase.high, high=-increase.low)
    return interval(saved, percent)


def _place(draft: str | None, concurrency: Load) -> str:
    return f"{f'draft {draft}, ' if draft else ''}{load_name(concurrency)}"


def _drafts(summary: Summary) -> Table:
    """Drafts and draft lengths side by side."""
    whole = (cell for cell in summary.cells if cell.request_class == cell.length == ALL)
    ways = [entry for entry in entries_of(whole) if entry.compared.pairs]
    loads = list(dict.fromkeys(entry.cell.concurrency for entry in ways))
    ways.sort(key=lambda entry: (loads.index(entry.cell.concurrency), -entry.compared.rank))
    rows = [
        (str(entry.cell.draft), str(entry.cell.concurrency), entry.mode, interval(entry.compared.speed_up),
         interval(entry.compared.p95_reduction, percent), plain(entry.drafts.acceptance))
        for entry in ways
    ]  # fmt: skip
    return Table(("draft", "at", "mode", "speed-up", "p95 falls by", "α"), rows, "drafts, the fastest first", 3)
