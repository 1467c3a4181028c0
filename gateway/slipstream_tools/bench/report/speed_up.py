"""By how much each mode is faster than plain, per class and length: a forest plot with intervals."""

from __future__ import annotations

from slipstream_tools.bench.report.formats import interval, percent, ratio, tick_ratio
from slipstream_tools.bench.report.frame import Frame, figure, plot, table, x_axis
from slipstream_tools.bench.report.markup import Markup, join, tag
from slipstream_tools.bench.report.scales import Scale, logarithmic
from slipstream_tools.bench.report.view import FEW, View, mode_class, mode_number
from slipstream_tools.bench.summary import ALL, Cell, Comparison, Interval

_ROW, _LEFT, _RIGHT, _WIDTH = 15.0, 236.0, 72.0, 980.0


def speed_up(view: View) -> Markup:
    """One row per cell, one interval per mode in it."""
    cells = [cell for cell in view.cells if any(_interval(cell, mode) for mode in view.others)]
    cells = _distinct(cells)
    if not cells:
        return tag("p", "No request was answered both plainly and in another mode.", class_="note")
    height = sum(_height(view, cell) for cell in cells)
    frame = Frame(width=_WIDTH, height=height + 60, left=_LEFT, right=_RIGHT)
    ends = [end for cell in cells for mode in view.others if (found := _interval(cell, mode))
            for end in (found.low, found.high)]  # fmt: skip
    x = logarithmic([1.0, *(min(max(end, 0.2), 20.0) for end in ends)], *frame.x_range)
    rows, top = [], frame.top
    for index, cell in enumerate(cells):
        rows.append(_row(view, cell, x, top, shaded=index % 2 == 0))
        top += _height(view, cell)
    one = tag("line", x1=x(1.0), x2=x(1.0), y1=frame.top, y2=top, class_="reference")
    drawing = plot(
        *(tag("g", row) for row in rows), x_axis(frame, x, tick_ratio, "mean E2E of plain ÷ mode's: right is faster"),
        one, *(_marks(view, cell, x, frame.top + sum(_height(view, before) for before in cells[:index]))
               for index, cell in enumerate(cells)),
        frame=frame, key=f"{view.key}-speed", title="Speed-up over plain, by class and output length",
        description="One row per request class and length bin, one mark with its 95 % interval per mode. "
        f"Hollow marks have fewer than {FEW} requests.",
    )  # fmt: skip
    return figure(drawing, caption="Speed-up over plain with 95 % intervals; hollow: fewer than "
                  f"{FEW} requests", behind=_table(view, cells))  # fmt: skip


def _distinct(cells: list[Cell]) -> list[Cell]:
    """Without the length bins of classes that have one only."""
    bins = [cell.request_class for cell in cells if cell.length != ALL]
    return [cell for cell in cells if cell.length == ALL or bins.count(cell.request_class) > 1]


def name_of(cell: Cell) -> str:
    if cell.length == ALL:
        return "all classes" if cell.request_class == ALL else cell.request_class
    return f"{'all' if cell.request_class == ALL else cell.request_class}, {cell.length}"


def _interval(cell: Cell, mode: str) -> Interval | None:
    comparison = cell.comparisons.get(mode)
    return comparison.speed_up if comparison else None


def _height(view: View, cell: Cell) -> float:
    return _ROW * len(view.others) + 8


def _row(view: View, cell: Cell, x: Scale, top: float, *, shaded: bool) -> Markup:
    height = _height(view, cell)
    middle = top + height / 2 + 4
    indent = 14.0 if cell.length != ALL else 0.0
    shown = name_of(cell) if not indent else cell.length
    style = "row-label" + (" strong" if cell.request_class == ALL and not indent else "")
    band = tag("rect", x=0.0, y=top, width=_WIDTH, height=height, class_="band") if shaded else None
    return join(
        band, tag("text", _short(shown), x=10 + indent, y=middle, class_=style),
        tag("text", f"n {cell.requests}", x=_WIDTH - 10, y=middle, text_anchor="end", class_="tick"),
    )  # fmt: skip


def _marks(view: View, cell: Cell, x: Scale, top: float) -> Markup:
    parts = []
    for index, mode in enumerate(view.others):
        found = _interval(cell, mode)
        if found is None:
            continue
        y = top + 4 + _ROW * (index + 0.5)
        tip = f"{name_of(cell)}, {mode}: {interval(found, ratio)}, {cell.comparisons[mode].pairs} pairs"
        parts.append(tag(
            "g",
            tag("line", x1=x(found.low), x2=x(found.high), y1=y, y2=y, class_="whisker"),
            tag("circle", cx=x(found.estimate), cy=y, r=4.5,
                class_="mark dot" + (" few" if cell.requests < FEW else ""), data_tip=tip),
            class_=mode_class(mode, view.modes), data_mode=mode_number(mode, view.modes),
        ))  # fmt: skip
    return join(*parts)


def _short(text: str, limit: int = 34) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _table(view: View, cells: list[Cell]) -> Markup:
    rows = [
        (name_of(cell), mode, str(comparison.pairs), *_figures(comparison))
        for cell in cells
        for mode, comparison in cell.comparisons.items()
    ]
    head = ("class and length", "mode", "pairs", "speed-up", "p95 reduction", "got faster")
    return table(head, rows, caption="Against plain, paired, with 95 % intervals", text_columns=2)


def _figures(comparison: Comparison) -> tuple[str, str, str]:
    reduction = interval(comparison.p95_reduction, percent)
    return interval(comparison.speed_up, ratio), reduction, percent(comparison.faster_share)
