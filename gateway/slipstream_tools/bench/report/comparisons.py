"""Modes against plain and against each other: speed-up, routing beside the oracle, and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

from slipstream_tools.bench.report import vega
from slipstream_tools.bench.report.formats import interval, money, percent, ratio, seconds
from slipstream_tools.bench.report.view import FEW, ORACLE, Block, Figure, Table, View, name_of
from slipstream_tools.bench.summary import ALL, PLAIN, ROUTED, Cell, ModeFigures, OracleFigures, Point

_MARKS = 20


def speed_up(view: View) -> Block:
    """A forest plot: one row per cell, one interval per mode in it."""
    bins = [cell.request_class for cell in view.summary.cells if cell.length != ALL]
    cells = [
        cell
        for cell in view.summary.cells
        if any(compared.speed_up for compared in cell.comparisons.values())
        and (cell.length == ALL or bins.count(cell.request_class) > 1)  # one length says the same as all of them
    ]
    if not cells:
        return "No request was answered both plainly and in another mode."
    data: list[dict[str, Any]] = [
        {
            **view.look(cell, mode),
            "low": found.low,
            "high": found.high,
            "value": found.estimate,
            "tip": f"{name_of(cell)}, {mode}: {interval(found, ratio)}, {compared.pairs} pairs",
        }
        for cell in cells
        for mode, compared in cell.comparisons.items()
        if (found := compared.speed_up)
    ]
    low, high = min([1.0, *(one["low"] for one in data)]), max([1.0, *(one["high"] for one in data)])
    domain = [max(low, 0.2) / 1.08, min(high, 20.0) * 1.08]
    drawing = vega.forest(
        660, data, view.others, {name_of(cell): f"n {cell.requests}" for cell in cells},
        vega.axis("value", "mean E2E of plain ÷ mode's: right is faster", vega.RATIO, domain=domain, log=True),
        vega.layer({"type": "rule", "color": "var(--ink)", "strokeDash": [4, 4]}, [{}], x={"datum": 1.0}),
    )  # fmt: skip
    rows = [
        (name_of(cell), mode, str(one.pairs), interval(one.speed_up, ratio), interval(one.p95_reduction, percent),
         percent(one.faster_share))
        for cell in cells for mode, one in cell.comparisons.items()
    ]  # fmt: skip
    head = ("class and length", "mode", "pairs", "speed-up", "p95 reduction", "got faster")
    return Figure(
        f"Speed-up over plain with 95 % intervals; hollow: fewer than {FEW} requests", drawing,
        "One row per request class and length bin, one mark with its 95 % interval per mode.",
        Table(head, rows, "Against plain, paired, with 95 % intervals", text_columns=2),
    )  # fmt: skip


def routing(view: View) -> Iterator[Block]:
    """Mean E2E of each way of deciding, the share of the oracle's saving, and how both grew."""
    means = mean_times(view)
    if view.oracle is None or means is None:
        yield "This needs the modes plain, routed and speculative."
    else:
        data = [
            {"row": name, "value": mean, "label": seconds(mean), "colour": view.colour(name),
             "tip": f"{name}: {seconds(mean)} on average, {_against(mean, means[PLAIN])}"}
            for name, mean in means.items()
        ]  # fmt: skip
        drawing = vega.bars(data, "mean E2E per request", vega.SECONDS)
        caption = "Mean E2E per request; the oracle takes the faster measured mode of each"
        description = "One bar each for always plain, always speculative, routed, and the oracle. Shorter is faster."
        yield [Figure(caption, drawing, description), _oracle_figures(view.oracle)]
    sums = running(view)
    if len(sums) >= 2:
        yield _learning(view, sums)


def mean_times(view: View) -> dict[str, float] | None:
    """Mean E2E per request of each way of deciding, over the requests that all of them answered."""
    by_request: dict[int, list[Point]] = {}
    for point in view.summary.points:
        if point.routed_s is not None:
            by_request.setdefault(point.index, []).append(point)
    speculative = view.speculative
    kept = [(one, points) for points in by_request.values() for one in points if one.mode == speculative]
    if speculative is None or not kept:
        return None
    return {
        PLAIN: fmean(point.plain_s for point, _ in kept),
        speculative: fmean(point.speculative_s for point, _ in kept),
        ROUTED: fmean(point.routed_s or 0.0 for point, _ in kept),
        ORACLE: fmean(min(point.plain_s, *(one.speculative_s for one in points)) for point, points in kept),
    }


def _against(mean: float, plain: float) -> str:
    saved = 1 - mean / plain
    return f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} than plain"


def _oracle_figures(oracle: OracleFigures) -> Table:
    worst = oracle.worst_class
    rows = [
        ("share of the oracle's saving, all requests", percent(oracle.captured)),
        (f"first {oracle.first_requests} requests", percent(oracle.captured_first)),
        ("after those", percent(oracle.captured_warm)),
        ("with the recorded time of the chosen arm", percent(oracle.captured_by_choice)),
        ("mean E2E, plain ÷ routed", interval(oracle.plain_over_routed, ratio)),
        ("mean E2E, speculative ÷ routed", interval(oracle.speculative_over_routed, ratio)),
    ]
    if worst is not None:
        rows.append((f"worst class ({worst.request_class}): routed over plain", interval(worst.slow_down, percent)))
    return Table(("", ""), rows, f"Routed, over {oracle.requests} requests", fold=False)


def running(view: View) -> list[tuple[float, float]]:
    """(saved by routed, saved by the oracle) over plain after each routed answer, in seconds."""
    points = {point.index: point for point in view.summary.points if point.mode == view.speculative}
    sums, routed, oracle = [], 0.0, 0.0
    for row in view.rows:
        point = points.get(row.index)
        if row.mode != ROUTED or row.error is not None or row.e2e_s is None or point is None:
            continue
        routed += point.plain_s - row.e2e_s
        oracle += max(point.saving_s, 0.0)
        sums.append((routed, oracle))
    return sums


def _learning(view: View, sums: Sequence[tuple[float, float]]) -> Figure:
    marked = range(max(len(sums) // _MARKS, 1), len(sums) + 1, max(len(sums) // _MARKS, 1))
    share = [percent(routed / oracle if oracle > 0 else None) for routed, oracle in sums]
    layers, both = [], sums[-1]
    for column, name in enumerate((ROUTED, ORACLE)):
        look, dash = {"colour": view.colour(name)}, [2, 4] if name == ORACLE else [1, 0]
        text = {"type": "text", "align": "left", "dx": 8, "dy": -8 if both[column] == max(both) else 8}
        line = [{"at": at, "saved": one[column], **look} for at, one in enumerate(sums, start=1)]
        tips = [f"{name}: {seconds(sums[at - 1][column])} saved in {at} requests" for at in marked]
        if name == ROUTED:
            tips = [f"{tip}, {share[at - 1]} of the oracle's" for tip, at in zip(tips, marked, strict=True)]
        layers += [
            vega.layer({"type": "line", "strokeDash": dash}, line, color=vega.raw("colour")),
            vega.dots([{**line[at - 1], "tip": tip} for tip, at in zip(tips, marked, strict=True)], size=30),
            vega.layer(text, [line[-1]], text={"value": name}),
        ]
    drawing = vega.chart(
        820, 250, *layers,
        x=vega.axis("at", "routed requests, in the order they ran", vega.COUNT, domain=[0, len(sums)]),
        y=vega.axis("saved", "saved over plain", vega.SECONDS),
    )  # fmt: skip
    rows = [(str(at), *(seconds(saved) for saved in sums[at - 1]), share[at - 1]) for at in marked]
    return Figure(
        "Seconds saved over plain as the gateway learns, beside the oracle's", drawing,
        "Running sum of the time saved over plain decoding, by routing and by the oracle. "
        "Where the lines are parallel, routing is as good as the oracle.",
        Table(("requests", "routed", "oracle", "share"), rows, "Seconds saved, running"),
    )  # fmt: skip


def cost(view: View, *, priced: bool) -> Iterator[Block]:
    """Bars per response and per 1,000 output tokens; without prices the relative figures only."""
    whole = view.whole
    if whole is None:
        yield "No answers."
        return
    if priced:
        yield [
            _cost_bars(view, whole, "per response", lambda figures: figures.cost_per_response),
            _cost_bars(view, whole, "per 1,000 output tokens", lambda figures: figures.cost_per_1000_tokens),
        ]
    else:
        yield ("No price per GPU-hour is known, so differences in cost are differences in time at equal prices. "
               "Set pricePerGpuHour in the manifest to see costs.")  # fmt: skip
    rows = [
        (name_of(cell), mode, money(figures.cost_per_response), money(figures.cost_per_1000_tokens),
         interval(cell.comparisons[mode].cost_increase, percent) if mode in cell.comparisons else "",
         f"{figures.throughput_tokens_per_s:,.0f}" if figures.throughput_tokens_per_s is not None else "")
        for cell in view.by_class for mode, figures in cell.modes.items()
    ]  # fmt: skip
    head = ("class", "mode", "per response", "per 1,000 tokens", "against plain (95 %)", "tokens per second")
    yield Table(head, rows, "Cost by class", text_columns=2)


def _cost_bars(view: View, whole: Cell, per: str, of: Callable[[ModeFigures], float | None]) -> Figure:
    data = [
        {"row": mode, "value": value, "label": money(value), "colour": view.colour(mode),
         "tip": f"{mode}: {money(value)} {per}"}
        for mode, figures in whole.modes.items() if (value := of(figures)) is not None
    ]  # fmt: skip
    caption = f"Cost {per}, all classes"
    return Figure(caption, vega.bars(data, f"cost {per}", vega.MONEY, 280), "One bar per mode, all classes together.")
