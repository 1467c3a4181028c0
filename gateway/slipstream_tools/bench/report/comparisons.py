"""Modes against plain and against each other: speed-up, routing beside the oracle, latency, cost and quality."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from slipstream_tools.bench.arrivals import load_name
from slipstream_tools.bench.formats import NONE, count, interval, money, percent, ratio, seconds
from slipstream_tools.bench.report import vega
from slipstream_tools.bench.report.view import FEW, ORACLE, Block, Figure, Panel, View
from slipstream_tools.bench.summary import (
    ALL,
    PLAIN,
    ROUTED,
    Cell,
    Distribution,
    Entry,
    ModeFigures,
    Point,
    distinct,
    entries_of,
)
from slipstream_tools.bench.tables import Table, entry_table, oracle_table

_MARKS = 20
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


def speed_up(view: View) -> Block:
    """A forest plot: one row per cell, one interval per mode in it."""
    entries = [entry for entry in entries_of(distinct(view.summary.cells)) if entry.mode in entry.cell.comparisons]
    data = [
        {**view.look(entry), "low": found.low, "high": found.high, "value": found.estimate,
         "tip": f"{entry.name}, {entry.mode}: {interval(found, ratio)}, {entry.compared.pairs} pairs"}
        for entry in entries if (found := entry.compared.speed_up)
    ]  # fmt: skip
    if not data:
        return "No request was answered both plainly and in another mode."
    low, high = min([1.0, *(one["low"] for one in data)]), max([1.0, *(one["high"] for one in data)])
    beside = {entry.name: f"n {entry.cell.requests}" for entry in entries if entry.compared.speed_up}
    drawing = vega.forest(
        660, data, view.others, beside,
        vega.axis("value", "mean E2E of plain ÷ mode's: right is faster", vega.RATIO, log=True,
                  domain=[max(low, 0.2) / 1.08, min(high, 20.0) * 1.08]),
        vega.layer({"type": "rule", "color": "var(--ink)", "strokeDash": [4, 4]}, [{}], x={"datum": 1.0}),
    )  # fmt: skip
    table = entry_table("Against plain, paired, with 95 % intervals", entries, {
        "pairs": lambda entry: str(entry.compared.pairs),
        "speed-up": lambda entry: interval(entry.compared.speed_up, ratio),
        "p95 reduction": lambda entry: interval(entry.compared.p95_reduction, percent),
        "got faster": lambda entry: percent(entry.compared.faster_share),
    })  # fmt: skip
    caption = f"Speed-up over plain with 95 % intervals; hollow: fewer than {FEW} requests"
    return Figure(caption, drawing, "One row per class and length bin, one interval per mode.", table)


def heat_maps(cells: Sequence[Cell]) -> list[Figure]:
    """For each mode, its speed-up over plain by class and by the number of requests in flight."""
    entries = entries_of(cell for cell in cells if cell.length == ALL)
    rows = list(dict.fromkeys(entry.name for entry in entries))
    columns = list(dict.fromkeys(str(entry.cell.concurrency) for entry in entries))
    by_mode: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if found := entry.compared.speed_up:
            tip = f"{entry.name}, {load_name(entry.cell.concurrency)}: {interval(found, ratio)}"
            look = {"value": found.estimate, "label": ratio(found.estimate), "tip": tip}
            by_mode[entry.mode].append({"row": entry.name, "column": str(entry.cell.concurrency), **look})
    return [
        Figure(
            f"{mode}: mean E2E of plain ÷ mode's",
            vega.heat_map(data, rows, columns, "requests in flight"),
            "One cell for each class and load. Green is faster than plain decoding, red is slower.",
        )
        for mode, data in by_mode.items()
    ]


def routing(view: View) -> Iterator[Block]:
    """Mean E2E of each way of deciding, the share of the oracle's saving, and how both grew."""
    means = mean_times(view)
    if view.oracle is None or not means:
        yield "This needs the modes plain, routed and speculative."
        return
    tips = {}
    for name, mean in means.items():
        saved = 1 - mean / means[PLAIN]
        tips[name] = f"{seconds(mean)} on average, {percent(abs(saved))} {'less' if saved >= 0 else 'more'} than plain"
    yield [
        Figure(
            "Mean E2E per request; the oracle takes the faster measured mode of each",
            vega.bars(view.colour, means, seconds, tips, "mean E2E per request", vega.SECONDS),
            "One bar for each way of deciding. Shorter is faster.",
        ),
        oracle_table(view.oracle),
    ]
    yield _learning(view, running(view))


def mean_times(view: View) -> dict[str, float]:
    """Mean E2E per request of each way of deciding, over the requests that all of them answered; empty for none."""
    by_request: dict[int, list[Point]] = defaultdict(list)
    for point in view.summary.points:
        if point.routed_s is not None:
            by_request[point.index].append(point)
    best_s = {index: min(one.speculative_s for one in points) for index, points in by_request.items()}
    kept = [one for points in by_request.values() for one in points if one.mode == view.speculative]
    times_s: dict[str, Callable[[Point], float]] = {
        PLAIN: lambda point: point.plain_s,
        str(view.speculative): lambda point: point.speculative_s,
        ROUTED: lambda point: point.routed_s or 0.0,
        ORACLE: lambda point: min(point.plain_s, best_s[point.index]),
    }
    return {name: fmean(map(time_s, kept)) for name, time_s in times_s.items()} if kept else {}


def running(view: View) -> list[tuple[float, float]]:
    """(saved by routed, saved by the oracle) over plain after each routed answer, in seconds."""
    plain_s = {point.index: point.plain_s for point in view.summary.points}
    best_s: dict[int, float] = defaultdict(float)
    for point in view.summary.points:
        best_s[point.index] = max(best_s[point.index], point.saving_s)
    sums, routed, oracle = [], 0.0, 0.0
    for row in view.rows:
        if row.mode == ROUTED and row.error is None and row.e2e_s is not None and row.index in plain_s:
            routed += plain_s[row.index] - row.e2e_s
            oracle += best_s[row.index]
            sums.append((routed, oracle))
    return sums


def _learning(view: View, sums: list[tuple[float, float]]) -> Block:
    every = max(len(sums) // _MARKS, 1)
    share = [percent(routed / oracle if oracle > 0 else None) for routed, oracle in sums]
    lines: list[dict[str, Any]] = []
    for at, (both, of_oracle) in enumerate(zip(sums, share, strict=True), start=1):
        ends = f"{at} requests, {of_oracle} of the oracle's", f"{at} requests"
        for name, saved, dash, end in zip((ROUTED, ORACLE), both, ([1, 0], [2, 4]), ends, strict=True):
            lines.append({"at": at, "saved": saved, "name": name, "dash": dash, "colour": view.colour(name),
                          "tip": f"{name}: {seconds(saved)} saved in {end}"})  # fmt: skip
    beside = {"type": "text", "align": "left", "dx": 8, "dy": {"expr": f"datum.name == '{ORACLE}' ? -8 : 8"}}
    drawing = vega.chart(
        820, 250,
        vega.layer("line", lines, color=vega.raw("colour"), strokeDash=vega.raw("dash")),
        vega.dots([one for one in lines if one["at"] % every == 0], size=30),
        vega.layer(beside, lines[-2:], text={"field": "name"}),
        x=vega.axis("at", "routed requests, in the order they ran", vega.COUNT, domain=[0, len(sums)]),
        y=vega.axis("saved", "saved over plain", vega.SECONDS),
    )  # fmt: skip
    rows = [(str(at), *map(seconds, sums[at - 1]), share[at - 1]) for at in range(every, len(sums) + 1, every)]
    return Figure(
        "Seconds saved over plain as the gateway learns, beside the oracle's", drawing,
        "Running sum of the time saved over plain decoding, by routing and by the oracle. "
        "Where the lines are parallel, routing is as good as the oracle.",
        Table(("requests", "routed", "oracle", "share"), rows, "Seconds saved, running"),
    )  # fmt: skip


def latency(view: View) -> list[Block]:
    """Three charts and a table per class; the reader picks the class at the top of the page."""
    return [
        Panel(cell.name, f"{cell.name} ({cell.requests} requests)",
              [*(_latency_figure(view, cell, field) for field in QUANTITIES), _latency_table(cell)])
        for cell in view.by_class
    ]  # fmt: skip


def _latency_figure(view: View, cell: Cell, field: str) -> Block:
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
    drawing = vega.chart(
        270, 210,
        vega.layer({"type": "line", "interpolate": "step-after", "clip": True}, lines, color=vega.raw("colour"),
              strokeDash=vega.raw("dash"), order={"field": "share"}),
        vega.dots(marks, size=40), x=vega.axis("s", name, vega.SECONDS, domain=domain, log=is_log),
        y=vega.axis("share", "share of answers", vega.PERCENT, domain=[0, 1], ticks=4),
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


def _latency_table(cell: Cell) -> Table:
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


def cost(view: View) -> Iterator[Block]:
    """Bars per response and per 1,000 output tokens; without prices the relative figures only."""
    if not view.summary.run.prices:
        yield ("No price per GPU-hour is known, so differences in cost are differences in time at equal prices. "
               "Set pricePerGpuHour in the manifest to see costs.")  # fmt: skip
    elif view.whole:
        yield [_cost_bars(view, "per response", lambda figures: figures.cost_per_response),
               _cost_bars(view, "per 1,000 output tokens", lambda figures: figures.cost_per_1000_tokens)]  # fmt: skip
    yield entry_table("Cost by class", view.entries, {
        "per response": lambda entry: money(entry.figures.cost_per_response),
        "per 1,000 tokens": lambda entry: money(entry.figures.cost_per_1000_tokens),
        "against plain (95 %)": lambda entry: interval(entry.compared.cost_increase, percent),
        "tokens per second": lambda entry: count(entry.figures.throughput_tokens_per_s),
    })  # fmt: skip


def _cost_bars(view: View, per: str, of: Callable[[ModeFigures], float | None]) -> Figure:
    costs = {mode: value for mode, entry in view.whole.items() if (value := of(entry.figures)) is not None}
    tips = {mode: f"{money(value)} {per}" for mode, value in costs.items()}
    drawing = vega.bars(view.colour, costs, money, tips, f"cost {per}", vega.MONEY, 280)
    return Figure(f"Cost {per}, all classes", drawing, "One bar per mode, all classes together.")


def quality(view: View) -> Block:
    """Passed checks per mode, and greedy answers with the same text as plain's."""
    return entry_table("Quality and parity by class", view.entries, {
        "checked": lambda entry: str(checks.checked if (checks := entry.figures.quality) else 0),
        "passed": lambda entry: percent(checks.share) if (checks := entry.figures.quality) else NONE,
        "against plain (95 %)": lambda entry: interval(entry.compared.quality, percent),
        "same text (greedy)": lambda entry: entry.parity,
        "failed": lambda entry: str(entry.figures.failed),
    }, fold=False)  # fmt: skip
