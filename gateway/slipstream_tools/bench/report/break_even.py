"""Where speculation begins to pay: expected length against acceptance, with the requests that were measured."""

from __future__ import annotations

import math

from slipstream_tools.bench.report.formats import percent, seconds, tick_percent, tick_plain, tick_seconds
from slipstream_tools.bench.report.frame import Frame, figure, note, path, plot, table, x_axis, y_axis
from slipstream_tools.bench.report.markup import Markup, join, number, tag
from slipstream_tools.bench.report.scales import Scale, linear, logarithmic, spread
from slipstream_tools.bench.report.view import View
from slipstream_tools.bench.summary import BreakEven, Point

_FRAME = Frame(width=980, height=420, right=92)
_STEPS = 120


def break_even(view: View) -> Markup:
    """One drawing per speculative mode that has a curve."""
    drawn = [_figure(view, curve, index) for index, curve in enumerate(view.break_even)]
    return join(*drawn) if drawn else note("No mode was measured with and without speculation.")


def needed_acceptance(curve: BreakEven, tokens: float, saving_s: float = 0.0) -> float:
    """The share α of accepted draft tokens at which an answer of `tokens` saves `saving_s`.

    A step that drafts γ tokens yields 1 + α·γ, so the saving is
    L · (plain_tpot − step / (1 + α·γ)) − extra TTFT. Infinite where no acceptance is enough.
    """
    left = curve.plain_tpot_s - (curve.extra_ttft_s + saving_s) / tokens
    if left <= 0:
        return math.inf
    return (curve.step_s / left - 1.0) / curve.draft_length


def _figure(view: View, curve: BreakEven, index: int) -> Markup:
    points = [point for point in view.points if point.mode == curve.mode and point.acceptance is not None]
    x = logarithmic([4.0, 300.0, *(point.output_tokens for point in points)], *_FRAME.x_range, pad=1.15)
    y = linear((0.0, 1.0), *_FRAME.y_range, count=5)
    title = f"Break-even of {curve.mode} (draft length {curve.draft_length})"
    drawing = plot(
        _region(curve, x, y), x_axis(_FRAME, x, tick_plain, "output tokens"),
        y_axis(_FRAME, y, tick_percent, "accepted ÷ drafted tokens"), *_contours(curve, x, y),
        *(_dot(view, point, x, y) for point in points),
        frame=_FRAME, key=f"{view.key}-even-{index}", title=title,
        description="Each dot is a request. Above the curve the measured times per token say that speculation pays; "
        "the thinner lines are where it saves that much. Filled dots were in fact faster, hollow ones slower.",
    )  # fmt: skip
    caption = (f"{title}: {seconds(curve.plain_tpot_s)} per token plain, {seconds(curve.step_s)} per step, "
               f"{seconds(curve.extra_ttft_s)} more to the first token")  # fmt: skip
    rows = [(str(tokens), *(_needed(curve, tokens, saving) for saving in (0.0, *_levels(curve))))
            for tokens in (10, 20, 40, 80, 128, 200, 400)]  # fmt: skip
    head = ("output tokens", "break-even", *(f"saves {tick_seconds(level)}" for level in _levels(curve)))
    return figure(drawing, caption=caption, behind=table(head, rows, caption="Acceptance needed"))


def _needed(curve: BreakEven, tokens: float, saving_s: float) -> str:
    needed = needed_acceptance(curve, tokens, saving_s)
    return "always" if needed <= 0 else "never" if needed > 1 else percent(needed)


def _levels(curve: BreakEven) -> tuple[float, ...]:
    """Two round savings that an answer of 200 tokens can reach."""
    best = 200 * (curve.plain_tpot_s - curve.step_s / (1 + curve.draft_length)) - curve.extra_ttft_s
    if best <= 0:
        return ()
    power = 10.0 ** math.floor(math.log10(best))
    round_best = next(power * factor for factor in (5.0, 2.0, 1.0) if power * factor <= best)
    return (round_best / 4, round_best)


def _curve(curve: BreakEven, x: Scale, saving_s: float) -> list[tuple[float, float]]:
    """(tokens, acceptance) along a line of equal saving."""
    low, high = math.log(x.low), math.log(x.high)
    lengths = [math.exp(low + (high - low) * step / _STEPS) for step in range(_STEPS + 1)]
    return [(tokens, needed_acceptance(curve, tokens, saving_s)) for tokens in lengths]


def _region(curve: BreakEven, x: Scale, y: Scale) -> Markup:
    """The ground above the curve, where speculation pays."""
    edge = [(x(tokens), y(min(needed, 1.0))) for tokens, needed in _curve(curve, x, 0.0) if needed <= 1.0]
    if not edge:
        return Markup("")
    corners = [(edge[-1][0], y(1.0)), (edge[0][0], y(1.0))]
    outline = " ".join(f"{number(across)},{number(up)}" for across, up in (*edge, *corners))
    return tag("polygon", points=outline, class_="pays", aria_hidden="true")


def _contours(curve: BreakEven, x: Scale, y: Scale) -> list[Markup]:
    drawn, ends = [], []
    for saving_s in (0.0, *_levels(curve)):
        inside = [(x(tokens), y(needed)) for tokens, needed in _curve(curve, x, saving_s) if 0.0 <= needed <= 1.0]
        if not inside:
            continue
        drawn.append(path(inside, class_="contour" if saving_s else "contour zero"))
        ends.append((inside[-1][1], inside[-1][0], saving_s))
    ends.sort()
    for (_, right, saving_s), height in zip(ends, spread([end[0] for end in ends], 14.0), strict=True):
        name = f"saves {tick_seconds(saving_s)}" if saving_s else "break-even"
        drawn.append(tag("text", name, x=right + 5, y=height + 4, class_="tick" if saving_s else "tick strong",
                         aria_hidden="true"))  # fmt: skip
    return drawn


def _dot(view: View, point: Point, x: Scale, y: Scale) -> Markup:
    tip = (f"{point.request_class}: {point.output_tokens:.0f} tokens, {percent(point.acceptance)} accepted, "
           f"{seconds(abs(point.saving_s))} {'faster' if point.saving_s > 0 else 'slower'} than plain")  # fmt: skip
    return tag("circle", cx=x(max(point.output_tokens, 1.0)), cy=y(point.acceptance or 0.0), r=3.2, data_tip=tip,
               data_point=view.class_number(point.request_class),
               class_="mark " + ("gain" if point.saving_s > 0 else "loss"))  # fmt: skip
