"""How long answers took: a cumulative distribution per mode for TTFT, TPOT and E2E, class by class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from slipstream_tools.bench.report.formats import percent, seconds
from slipstream_tools.bench.report.vega import PERCENT, SECONDS, axis, chart, dots, layer, raw
from slipstream_tools.bench.report.view import Block, Figure, Panel, Table, View, name_of
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import ALL, PLAIN, Cell, Distribution, ModeFigures

_STEPS = 120
_STRAY = 30.0
_DECADES = 12.0
"""Values that spread by more than this factor need a logarithmic axis."""


class Quantity(NamedTuple):
    """One latency: its name, its meaning, and where rows and cells have it."""

    name: str
    meaning: str
    of_row: Callable[[Row], float | None]
    of_figures: Callable[[ModeFigures], Distribution | None]


QUANTITIES = (
    Quantity("TTFT", "time to the first token", lambda row: row.ttft_s, lambda figures: figures.ttft_s),
    Quantity("TPOT", "time per output token after the first", lambda row: row.tpot_s, lambda figures: figures.tpot_s),
    Quantity("E2E", "time to the whole answer", lambda row: row.e2e_s, lambda figures: figures.e2e_s),
)


def latency(view: View) -> list[Block]:
    """Three charts and a table per class; the reader picks the class at the top of the page."""
    return [
        Panel(
            f"{name_of(cell)} ({cell.requests} requests)",
            [*(_figure(view, cell, quantity) for quantity in QUANTITIES), _table(cell)],
            number,
        )
        for number, cell in enumerate(view.by_class)
    ]


def _figure(view: View, cell: Cell, quantity: Quantity) -> Block:
    caption = f"{quantity.name}: {quantity.meaning}"
    samples = {mode: values for mode in view.modes if (values := _samples(view, cell, mode, quantity))}
    if not samples:
        return f"{caption}. Not measured."
    values = [value for some in samples.values() for value in some]
    # Two tokens that arrive in one packet have no time between them: such values do not set the axis.
    least = median(values) / _STRAY
    kept = [value for value in values if value >= least]
    is_log = min(kept) > 0 and max(kept) / min(kept) > _DECADES
    domain = [min(kept) / 1.08 if is_log else 0.0, max(kept) * 1.08]
    lines, marks = [], []
    for mode, some in samples.items():
        look = {"colour": view.colour(mode), "dash": [6, 3] if mode == PLAIN else [1, 0]}
        lines += [{"s": value, "share": share, **look} for value, share in steps(some)]
        found = quantity.of_figures(cell.modes[mode])
        for name, value in (("p50", found.p50), ("p95", found.p95), ("p99", found.p99)) if found else ():
            tip = f"{mode}: {name} {quantity.name} {seconds(value)} ({len(some)} answers)"
            marks.append({"s": value, "share": float(name[1:]) / 100, "tip": tip, **look})
    drawing = chart(
        270, 210,
        layer({"type": "line", "interpolate": "step-after", "clip": True}, lines, color=raw("colour"),
              strokeDash=raw("dash"), order={"field": "share"}),
        dots(marks, size=40), x=axis("s", quantity.name, SECONDS, domain=domain, log=is_log),
        y=axis("share", "share of answers", PERCENT, domain=[0, 1], ticks=4),
    )  # fmt: skip
    description = "Cumulative distribution, one line per mode; dots mark p50, p95 and p99. Further left is faster."
    return Figure(caption, drawing, description)


def _samples(view: View, cell: Cell, mode: str, quantity: Quantity) -> list[float]:
    """The quantity in each of the cell's complete answers in `mode`."""
    rows = (row for row in view.rows if row.mode == mode and row.error is None)
    found = (quantity.of_row(row) for row in rows if cell.request_class in (ALL, view.classes.get(row.index)))
    return [value for value in found if value is not None]


def steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """(value, share of answers that are at least as fast) at up to `_STEPS` quantiles."""
    ordered = np.sort(values)
    ranks = np.unique(np.linspace(1, len(ordered), _STEPS).round().astype(int))
    return [(ordered[0].item(), 0.0), *((ordered[rank - 1].item(), rank.item() / len(ordered)) for rank in ranks)]


def _table(cell: Cell) -> Table:
    rows = [
        (quantity.name, mode, str(one.n), *(seconds(value) for value in (one.mean, one.p50, one.p95, one.p99)))
        for quantity in QUANTITIES
        for mode, figures in cell.modes.items()
        if (one := quantity.of_figures(figures))
    ]
    failed = ", ".join(
        f"{mode} {figures.failed} ({percent(figures.failed / max(cell.requests, 1))})"
        for mode, figures in cell.modes.items()
        if figures.failed
    )
    caption = f"Latencies, {name_of(cell)}" + (f"; failed answers: {failed}" if failed else "")
    return Table(("", "mode", "n", "mean", "p50", "p95", "p99"), rows, caption, text_columns=2)
