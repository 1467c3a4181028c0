"""Did the gateway foresee what speculation would save? Predicted against measured saving, request by request."""

from __future__ import annotations

from slipstream_tools.bench.report.formats import percent, plain, seconds, tick_seconds
from slipstream_tools.bench.report.frame import Frame, figure, note, plot, table, x_axis, y_axis
from slipstream_tools.bench.report.markup import Markup, tag
from slipstream_tools.bench.report.scales import Scale, linear, most
from slipstream_tools.bench.report.view import View
from slipstream_tools.bench.summary import LengthBin, Point

_FRAME = Frame(width=520, height=420, left=74)


def forecast(view: View) -> Markup:
    """The scatter plot, and how well the expected length met the real one."""
    points = [point for point in view.points if point.mode == view.speculative and point.predicted_saving_s is not None]
    if not points:
        return note("The gateway's forecasts are known where the mode 'routed' runs beside plain and speculative.")
    return tag("div", _scatter(view, points), _figures(view), class_="halves")


def _scatter(view: View, points: list[Point]) -> Markup:
    both = [value for point in points for value in (point.saving_s, point.predicted_saving_s or 0.0)]
    range_s = most(both)
    x, y = linear(range_s, *_FRAME.x_range, count=5, tight=True), linear(range_s, *_FRAME.y_range, count=5, tight=True)
    low, high = x.low, x.high
    lines = [
        tag("line", x1=x(low), y1=y(low), x2=x(high), y2=y(high), class_="reference"),
        tag("line", x1=x(0.0), x2=x(0.0), y1=y(low), y2=y(high), class_="zero"),
        tag("line", x1=x(low), x2=x(high), y1=y(0.0), y2=y(0.0), class_="zero"),
    ]
    drawing = plot(
        x_axis(_FRAME, x, tick_seconds, "predicted saving"), y_axis(_FRAME, y, tick_seconds, "measured saving"),
        *lines, *(_dot(view, point, x, y) for point in points),
        frame=_FRAME, key=f"{view.key}-forecast", title="Predicted against measured saving",
        description="Each dot is a request. On the diagonal the forecast was exact; filled dots were routed to "
        "speculation, hollow ones decoded plainly. The few beyond the axes stand at their edge.",
    )  # fmt: skip
    caption = "Saving of speculation over plain: the gateway's forecast and what was measured"
    return figure(drawing, caption=caption)


def _dot(view: View, point: Point, x: Scale, y: Scale) -> Markup:
    predicted = point.predicted_saving_s or 0.0
    routed = "speculated" if (point.speculated or 0.0) >= 0.5 else "decoded plainly"
    tip = f"{point.request_class}: predicted {seconds(predicted)}, measured {seconds(point.saving_s)}, {routed}"
    return tag("circle", cx=x(predicted), cy=y(point.saving_s), r=3.2, data_tip=tip,
               data_point=view.class_number(point.request_class),
               class_="mark " + ("gain" if routed == "speculated" else "loss"))  # fmt: skip


def _figures(view: View) -> Markup:
    oracle = view.oracle
    if oracle is None:
        return Markup("")
    first = f"first {oracle.first_requests}"
    rows = [
        ("rank correlation, all requests", plain(oracle.rank_correlation)),
        (f"rank correlation after the {first}", plain(oracle.rank_correlation_warm)),
    ]
    caption = "Rank correlation of predicted with measured saving (Spearman)"
    return tag(
        "div", table(("", ""), rows, caption=caption, fold=False),
        _lengths(oracle.lengths_warm, f"Expected length bin against the answer's, after the {first}"),
        _lengths(oracle.lengths, "Expected length bin against the answer's, all requests"),
    )  # fmt: skip


def _lengths(bins: tuple[LengthBin, ...], caption: str) -> Markup | None:
    if not bins:
        return None
    rows = [(one.length, percent(one.precision), percent(one.recall), str(one.predicted), str(one.actual))
            for one in bins]  # fmt: skip
    return table(("length", "precision", "recall", "expected", "actual"), rows, caption=caption, fold=False)
