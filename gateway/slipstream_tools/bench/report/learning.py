"""How routing got better as it learnt: seconds saved over plain, request by request, beside the oracle's."""

from __future__ import annotations

from slipstream_tools.bench.report.formats import percent, seconds, tick_plain, tick_seconds
from slipstream_tools.bench.report.frame import Frame, figure, path, plot, table, x_axis, y_axis
from slipstream_tools.bench.report.markup import Markup, tag
from slipstream_tools.bench.report.scales import linear
from slipstream_tools.bench.report.view import View, mode_class
from slipstream_tools.bench.summary import ROUTED

_FRAME = Frame(width=980, height=308, left=74, right=110, top=20)
_MARKS = 20


def learning(view: View) -> Markup | None:
    """The two running sums; None where no routed answer has a plain and a speculative one beside it."""
    speculative = view.speculative
    if speculative is None:
        return None
    sums = running(view, speculative)
    if len(sums) < 2:
        return None
    x = linear([float(len(sums))], *_FRAME.x_range, tight=True)
    y = linear([value for both in sums for value in both], *_FRAME.y_range, count=5, tight=True)
    every = max(len(sums) // _MARKS, 1)
    lines = []
    for column, (name, style) in enumerate(((ROUTED, mode_class(ROUTED, view.modes)), ("oracle", "m-oracle"))):
        dots = [
            tag("circle", cx=x(float(at)), cy=y(sums[at - 1][column]), r=3, class_="mark dot",
                data_tip=_tip(name, at, sums[at - 1], column))
            for at in range(every, len(sums) + 1, every)
        ]  # fmt: skip
        curve = path([(x(float(at + 1)), y(both[column])) for at, both in enumerate(sums)], class_="curve")
        end = tag("text", name, x=x(float(len(sums))) + 8, y=y(sums[-1][column]) + (12 if column == 0 else -4),
                  class_="value", aria_hidden="true")  # fmt: skip
        lines.append(tag("g", curve, *dots, end, class_=style))
    drawing = plot(
        x_axis(_FRAME, x, tick_plain, "routed requests, in the order they ran"),
        y_axis(_FRAME, y, tick_seconds, "saved over plain"), *lines,
        frame=_FRAME, key=f"{view.key}-learning", title="Seconds saved, running",
        description="Running sum of the time saved over plain decoding by routing and by the oracle. "
        "Where the lines run in parallel, routing is as good as the oracle.",
    )  # fmt: skip
    rows = [(str(at), seconds(sums[at - 1][0]), seconds(sums[at - 1][1]), _percent(sums[at - 1]))
            for at in range(every, len(sums) + 1, every)]  # fmt: skip
    head = ("requests", "routed", "oracle", "share")
    return figure(drawing, caption="Seconds saved over plain as the gateway learns, beside the oracle's",
                  behind=table(head, rows, caption="Seconds saved, running"))  # fmt: skip


def running(view: View, speculative: str) -> list[tuple[float, float]]:
    """(saved by routed, saved by the oracle) after each routed answer, in seconds."""
    points = {point.index: point for point in view.points if point.mode == speculative}
    sums, routed, oracle = [], 0.0, 0.0
    for row in view.rows:
        point = points.get(row.index)
        if row.mode != ROUTED or row.error is not None or row.e2e_s is None or point is None:
            continue
        routed += point.plain_s - row.e2e_s
        oracle += max(point.saving_s, 0.0)
        sums.append((routed, oracle))
    return sums


def _tip(name: str, at: int, both: tuple[float, float], column: int) -> str:
    share = f", {_percent(both)} of the oracle's" if column == 0 else ""
    return f"{name}: {seconds(both[column])} saved in {at} requests{share}"


def _percent(both: tuple[float, float]) -> str:
    return percent(both[0] / both[1] if both[1] > 0 else None)
