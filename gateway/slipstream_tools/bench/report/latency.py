"""How long answers took: a cumulative distribution per mode for TTFT, TPOT and E2E, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from slipstream_tools.bench.formats import percent, seconds
from slipstream_tools.bench.report.vega import PERCENT, SECONDS, axis, chart, dots, layer, raw
from slipstream_tools.bench.report.view import Block, Figure, Panel, View
from slipstream_tools.bench.summary import ALL, PLAIN, Cell, Distribution, Entry, entries_of
from slipstream_tools.bench.tables import Table

_STEPS = 120
_STRAY = 30.0
_DECADES = 12.0
"""Values that spread by more than this factor need a logarithmic axis."""
QUANTITIES = {
    "ttft_s": ("TTFT", "time to the first token"),
    "tpot_s": ("TPOT", "time per output token after the first"),
    "e2e_s": ("E2E", "time to the whole answer"),
}
"""Name and meaning of each latency, by its field of a row and of a mode's figures."""


def latency(view: View) -> list[Block]:
    """Three charts and a table per class; the reader picks the class at the top of the page."""
    return [
        Panel(cell.name, f"{cell.name} ({cell.requests} requests)",
              [*(_figure(view, cell, field) for field in QUANTITIES), _table(cell)])
        for cell in view.by_class
    ]  # fmt: skip


def _figure(view: View, cell: Cell, field: str) -> Block:
    name, meaning = QUANTITIES[field]
    entries = [(entry, values) for entry in entries_of([cell]) if (values := _samples(view, entry, field))]
    if not entries:
        return f"{name}: {meaning}. Not measured."
    values = [value for _, some in entries for value in some]
    # Two tokens that arrive in one packet have no time between them: such values do not set the axis.
    least = median(values) / _STRAY
    kept = [value for value in values if value >= least]
    is_log = min(kept) > 0 and max(kept) / min(kept) > _DECADES
    domain = [min(kept) / 1.08 if is_log else 0.0, max(kept) * 1.08]
    lines: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    for entry, some in entries:
        look = {"colour": view.colour(entry.mode), "dash": [6, 3] if entry.mode == PLAIN else [1, 0]}
        lines += [{"s": value, "share": share, **look} for value, share in steps(some)]
        found: Distribution = getattr(entry.figures, field)
        for share in (50, 95, 99):
            at_s = getattr(found, f"p{share}")
            tip = f"{entry.mode}: p{share} {name} {seconds(at_s)} ({len(some)} answers)"
            marks.append({"s": at_s, "share": share / 100, "tip": tip, **look})
    drawing = chart(
        270, 210,
        layer({"type": "line", "interpolate": "step-after", "clip": True}, lines, color=raw("colour"),
              strokeDash=raw("dash"), order={"field": "share"}),
        dots(marks, size=40), x=axis("s", name, SECONDS, domain=domain, log=is_log),
        y=axis("share", "share of answers", PERCENT, domain=[0, 1], ticks=4),
    )  # fmt: skip
    description = "Cumulative distribution, one line per mode; dots mark p50, p95 and p99. Further left is faster."
    return Figure(f"{name}: {meaning}", drawing, description)


def _samples(view: View, entry: Entry, field: str) -> list[float]:
    """The quantity in each complete answer of the entry."""
    wanted = entry.cell.request_class
    rows = (row for row in view.rows if row.mode == entry.mode and row.error is None)
    found = (getattr(row, field) for row in rows if wanted in (ALL, view.classes.get(row.index)))
    return [value for value in found if value is not None]


def steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """(value, share of answers that are at least as fast) at up to `_STEPS` quantiles."""
    ordered = np.sort(values)
    ranks = np.unique(np.linspace(1, len(ordered), _STEPS).round().astype(int))
    return [(ordered[0].item(), 0.0), *((ordered[rank - 1].item(), rank.item() / len(ordered)) for rank in ranks)]


def _table(cell: Cell) -> Table:
    rows = [
        (name, entry.mode, str(one.n), *map(seconds, (one.mean, one.p50, one.p95, one.p99)))
        for field, (name, _) in QUANTITIES.items()
        for entry in entries_of([cell])
        if (one := getattr(entry.figures, field))
    ]
    failed = ", ".join(
        f"{mode} {figures.failed} ({percent(figures.failed / max(cell.requests, 1))})"
        for mode, figures in cell.modes.items()
        if figures.failed
    )
    caption = f"Latencies, {cell.name}" + (f"; failed answers: {failed}" if failed else "")
    return Table(("", "mode", "n", "mean", "p50", "p95", "p99"), rows, caption, text_columns=2)
