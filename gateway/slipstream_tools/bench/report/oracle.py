"""Routed against always plain, always speculative, and an oracle that knows the faster one of each request."""

from __future__ import annotations

from statistics import fmean

from slipstream_tools.bench.report.formats import interval, percent, ratio, seconds, tick_seconds
from slipstream_tools.bench.report.frame import Frame, figure, note, plot, table, x_axis
from slipstream_tools.bench.report.markup import Markup, tag
from slipstream_tools.bench.report.scales import linear
from slipstream_tools.bench.report.view import View, mode_class
from slipstream_tools.bench.summary import BASELINE, ROUTED, OracleFigures, Point

_ROW = 44.0


def oracle(view: View) -> Markup:
    """Bars of mean E2E per request, and the share of the oracle's saving."""
    means = mean_times(view)
    if view.oracle is None or means is None:
        return note("Needs the modes plain, routed and one that always speculates.")
    return tag("div", _bars(view, means), _figures(view.oracle), class_="halves")


def mean_times(view: View) -> dict[str, float] | None:
    """Mean E2E per request of each way of deciding, over the requests that all of them answered."""
    by_request: dict[int, list[Point]] = {}
    for point in view.points:
        if point.routed_s is not None:
            by_request.setdefault(point.index, []).append(point)
    speculative = view.speculative
    chosen = [next((one for one in points if one.mode == speculative), None) for points in by_request.values()]
    kept = [(point, by_request[point.index]) for point in chosen if point is not None]
    if speculative is None or not kept:
        return None
    return {
        BASELINE: fmean(point.plain_s for point, _ in kept),
        speculative: fmean(point.speculative_s for point, _ in kept),
        ROUTED: fmean(point.routed_s or 0.0 for point, _ in kept),
        "oracle": fmean(min(point.plain_s, *(one.speculative_s for one in points)) for point, points in kept),
    }


def _bars(view: View, means: dict[str, float]) -> Markup:
    frame = Frame(width=560, height=len(means) * _ROW + 64, left=110, right=84)
    x = linear(means.values(), *frame.x_range, count=5)
    rows = []
    for index, (name, mean) in enumerate(means.items()):
        top = frame.top + index * _ROW
        saved = 1 - mean / means[BASELINE]
        tip = f"{name}: {seconds(mean)} on average, {percent(abs(saved))} {'less' if saved >= 0 else 'more'} than plain"
        style = mode_class(name, view.modes) if name in view.modes else "m-oracle"
        rows.append(tag(
            "g",
            tag("text", name, x=100.0, y=top + 27, text_anchor="end", class_="row-label"),
            tag("rect", x=x(0.0), y=top + 9, width=max(x(mean) - x(0.0), 0.0), height=_ROW - 18, rx=3,
                class_="mark bar", data_tip=tip),
            tag("text", seconds(mean), x=x(mean) + 8, y=top + 27, class_="value"),
            class_=style,
        ))  # fmt: skip
    drawing = plot(
        x_axis(frame, x, tick_seconds, "mean E2E per request"), *rows,
        frame=frame, key=f"{view.key}-oracle", title="Mean time per request by way of deciding",
        description="One bar each for always plain, always speculative, routed, and the oracle. Shorter is faster.",
    )  # fmt: skip
    return figure(drawing, caption="Mean E2E per request; the oracle takes the faster measured mode of each")


def _figures(oracle: OracleFigures) -> Markup:
    first = oracle.first_requests
    worst = oracle.worst_class
    rows = [
        ("share of the oracle's saving, all requests", percent(oracle.captured)),
        (f"first {first} requests", percent(oracle.captured_first)),
        ("after those", percent(oracle.captured_warm)),
        ("by the recorded time of the arm chosen", percent(oracle.captured_by_choice)),
        ("mean E2E, plain ÷ routed", interval(oracle.plain_over_routed, ratio)),
        ("mean E2E, speculative ÷ routed", interval(oracle.speculative_over_routed, ratio)),
    ]
    if worst is not None:
        rows.append((f"worst class ({worst.request_class}): routed over plain", interval(worst.slow_down, percent)))
    caption = f"Routed, over {oracle.requests} requests"
    return tag("div", table(("", ""), rows, caption=caption, fold=False))
