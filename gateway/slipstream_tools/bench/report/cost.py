"""What answers cost: per response and per 1,000 output tokens, by mode and class."""

from __future__ import annotations

from collections.abc import Callable

from slipstream_tools.bench.report.formats import interval, money, percent, tick_money
from slipstream_tools.bench.report.frame import Frame, figure, note, plot, table, x_axis
from slipstream_tools.bench.report.markup import Markup, join, tag
from slipstream_tools.bench.report.scales import linear
from slipstream_tools.bench.report.view import View, mode_class, mode_number
from slipstream_tools.bench.summary import ALL, Cell, ModeFigures

_BAR = 22.0


def cost(view: View, *, priced: bool) -> Markup:
    """Two bar plots and a table; without prices the relative figures only."""
    whole = view.whole
    if whole is None:
        return note("No answers.")
    parts = []
    if priced:
        bars = (
            _bars(view, whole, "response", "per response", lambda figures: figures.cost_per_response),
            _bars(view, whole, "tokens", "per 1,000 output tokens", lambda figures: figures.cost_per_1000_tokens),
        )
        parts.append(tag("div", *bars, class_="halves"))  # fmt: skip
    else:
        parts.append(note("No price per GPU-hour is known, so differences in cost are differences in time at equal "
                          "prices. Name prices in the manifest (pricePerGpuHour) to see money."))  # fmt: skip
    return join(*parts, _table(view))


def _bars(view: View, whole: Cell, key: str, name: str, of: Callable[[ModeFigures], float | None]) -> Markup:
    found = {mode: of(figures) for mode, figures in whole.modes.items()}
    kept = {mode: value for mode, value in found.items() if value is not None}
    frame = Frame(width=480, height=len(kept) * (_BAR + 14) + 60, left=110, right=90)
    x = linear(kept.values(), *frame.x_range, count=4)
    rows = []
    for index, (mode, value) in enumerate(kept.items()):
        top = frame.top + index * (_BAR + 14) + 6
        rows.append(tag(
            "g",
            tag("text", mode, x=100.0, y=top + 16, text_anchor="end", class_="row-label"),
            tag("rect", x=x(0.0), y=top, width=x(value) - x(0.0), height=_BAR, rx=3, class_="mark bar",
                data_tip=f"{mode}: {money(value)} {name}"),
            tag("text", money(value), x=x(value) + 8, y=top + 16, class_="value"),
            class_=mode_class(mode, view.modes), data_mode=mode_number(mode, view.modes),
        ))  # fmt: skip
    drawing = plot(x_axis(frame, x, tick_money, f"cost {name}"), *rows, frame=frame, key=f"{view.key}-cost-{key}",
                   title=f"Cost {name}", description="One bar per mode, all classes together.")  # fmt: skip
    return figure(drawing, caption=f"Cost {name}, all classes")


def _table(view: View) -> Markup:
    rows = [
        ("all classes" if cell.request_class == ALL else cell.request_class, mode, money(figures.cost_per_response),
         money(figures.cost_per_1000_tokens), _increase(cell, mode), _throughput(figures))
        for cell in view.by_class for mode, figures in cell.modes.items()
    ]  # fmt: skip
    head = ("class", "mode", "per response", "per 1,000 tokens", "against plain (95 %)", "tokens per second")
    return table(head, rows, caption="Cost by class", text_columns=2)


def _increase(cell: Cell, mode: str) -> str:
    comparison = cell.comparisons.get(mode)
    return "" if comparison is None else interval(comparison.cost_increase, percent)


def _throughput(figures: ModeFigures) -> str:
    return "" if figures.throughput_tokens_per_s is None else f"{figures.throughput_tokens_per_s:,.0f}"
