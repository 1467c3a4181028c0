"""How long answers took: a cumulative distribution per mode for TTFT, TPOT and E2E, class by class."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from slipstream_tools.bench.report.formats import percent, seconds, tick_percent, tick_seconds
from slipstream_tools.bench.report.frame import Frame, figure, path, plot, table, x_axis, y_axis
from slipstream_tools.bench.report.markup import Markup, tag
from slipstream_tools.bench.report.scales import Scale, linear, logarithmic, spans_decades
from slipstream_tools.bench.report.view import View, mode_class, mode_number
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import ALL, Cell, Distribution, ModeFigures

_FRAME = Frame(width=340, height=270, left=56, right=14)
_MARKS = (0.5, 0.95, 0.99)
_STEPS = 120
_STRAY = 30.0
_LABEL_WIDTH = 46.0


class Quantity(NamedTuple):
    """One latency: its name, what it is, and where rows and cells have it."""

    name: str
    meaning: str
    of_row: Callable[[Row], float | None]
    of_figures: Callable[[ModeFigures], Distribution | None]


QUANTITIES = (
    Quantity("TTFT", "time to the first token", lambda row: row.ttft_s, lambda figures: figures.ttft_s),
    Quantity("TPOT", "time per output token after the first", lambda row: row.tpot_s, lambda figures: figures.tpot_s),
    Quantity("E2E", "time to the whole answer", lambda row: row.e2e_s, lambda figures: figures.e2e_s),
)


def latency(view: View) -> Markup:
    """Three plots per class; the reader picks the class at the top of the page."""
    panels = [
        tag("div", tag("h3", _name(cell)), *(_plot(view, cell, index, quantity) for quantity in QUANTITIES),
            _table(view, cell), class_="thirds", data_panel=view.class_number(cell.request_class))
        for index, cell in enumerate(view.by_class)
    ]  # fmt: skip
    return tag("div", *panels, data_panels=True)


def _name(cell: Cell) -> str:
    name = "all classes" if cell.request_class == ALL else cell.request_class
    return f"{name} ({cell.requests} requests)"


def _plot(view: View, cell: Cell, index: int, quantity: Quantity) -> Markup:
    samples = {mode: _samples(view, cell, mode, quantity) for mode in view.modes}
    values = [value for some in samples.values() for value in some]
    caption = f"{quantity.name}: {quantity.meaning}"
    if not values:
        return tag("figure", tag("figcaption", caption), tag("p", "Not measured.", class_="note"))
    kept = _without_stray(values)
    make = logarithmic if spans_decades(kept) else linear
    x = make(kept, *_FRAME.x_range)
    y = linear((0.0, 1.0), *_FRAME.y_range, count=4)
    curves = [_curve(view, mode, samples[mode], x, y, quantity.name) for mode in view.modes if samples[mode]]
    drawing = plot(
        x_axis(_FRAME, _thin(x), tick_seconds, quantity.name), y_axis(_FRAME, y, tick_percent, "answers as fast"),
        *curves, frame=_FRAME, key=f"{view.key}-{quantity.name}-{index}", title=caption,
        description="Cumulative distribution, one line per mode; dots mark p50, p95 and p99. Further left is faster.",
    )  # fmt: skip
    return figure(drawing, caption=caption)


def _samples(view: View, cell: Cell, mode: str, quantity: Quantity) -> list[float]:
    kept = (
        quantity.of_row(row)
        for row in view.rows
        if row.mode == mode and row.error is None and cell.request_class in (ALL, view.classes.get(row.index))
    )
    return sorted(value for value in kept if value is not None)


def _without_stray(values: Sequence[float]) -> list[float]:
    """Values without those far below all others: two tokens that arrive in one packet have no time between them."""
    middle = quantile(sorted(values), 0.5)
    return [value for value in values if value >= middle / _STRAY]


def _curve(view: View, mode: str, values: Sequence[float], x: Scale, y: Scale, name: str) -> Markup:
    """A step line through at most `_STEPS` quantiles, and a dot for each quantile that people ask for."""
    count = len(values)
    ranks = sorted({0, *(round(step * (count - 1) / _STEPS) for step in range(_STEPS + 1)), count - 1})
    points = [(x(values[0]), y(0.0)), *((x(values[rank]), y((rank + 1) / count)) for rank in ranks)]
    stairs = [points[0]]
    for here in points[1:]:
        stairs += [(here[0], stairs[-1][1]), here]
    dots = [
        tag("circle", cx=x(quantile(values, share)), cy=y(share), r=3.5, class_="mark dot",
            data_tip=f"{mode}: p{share * 100:.0f} {name} {seconds(quantile(values, share))} ({count} answers)")
        for share in _MARKS
    ]  # fmt: skip
    return tag("g", path(stairs, class_="curve"), *dots, class_=mode_class(mode, view.modes),
               data_mode=mode_number(mode, view.modes))  # fmt: skip


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of sorted `values` that `share` of them do not exceed, as in the summary."""
    return values[max(math.ceil(share * len(values) - 1e-9) - 1, 0)]


def _thin(scale: Scale) -> Scale:
    """Without ticks whose labels would touch."""
    kept: list[float] = []
    for tick in scale.ticks:
        if not kept or scale(tick) - scale(kept[-1]) >= _LABEL_WIDTH:
            kept.append(tick)
    return replace(scale, ticks=tuple(kept))


def _table(view: View, cell: Cell) -> Markup:
    rows = []
    for quantity in QUANTITIES:
        for mode, figures in cell.modes.items():
            found = quantity.of_figures(figures)
            if found is not None:
                figures_of = (found.mean, found.p50, found.p95, found.p99)
                rows.append((quantity.name, mode, str(found.n), *(seconds(value) for value in figures_of)))
    head = ("", "mode", "n", "mean", "p50", "p95", "p99")
    counted = Counter(mode for mode, figures in cell.modes.items() for _ in range(figures.failed))
    failed = ", ".join(f"{mode} {count} ({percent(count / max(cell.requests, 1))})" for mode, count in counted.items())
    caption = f"Latencies, {_name(cell)}" + (f"; failed answers: {failed}" if failed else "")
    return table(head, rows, caption=caption, text_columns=2)
