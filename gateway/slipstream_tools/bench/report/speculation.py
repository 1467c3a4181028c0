"""Where speculation pays, how well the gateway predicted it, and how many draft tokens the target accepted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from slipstream_tools.bench.formats import count, percent, plain, seconds
from slipstream_tools.bench.report.vega import COUNT, PERCENT, SECONDS, axis, chart, dots, forest, layer
from slipstream_tools.bench.report.view import HOLLOW, Block, Figure, View
from slipstream_tools.bench.summary import ALL, BreakEven, Entry
from slipstream_tools.bench.tables import Table, entry_table, forecast_tables

_STEPS = 120
_FEW_STEPS = 30
_SLOTS = 6
_SHARE = "accepted ÷ drafted tokens"
_DASHES = ([1, 0], [6, 3], [2, 3])


def break_even(view: View) -> Iterator[Block]:
    """Expected length against acceptance, with the requests that were measured: one chart per speculative mode."""
    if not view.summary.break_even:
        yield "This needs the mode plain and one that speculates, on servers that report their steps."
    for curve in view.summary.break_even:
        yield _break_even(view, curve)


def needed_acceptance(curve: BreakEven, tokens: float, saving_s: float = 0.0) -> float:
    """The share α of accepted draft tokens at which an answer of `tokens` saves `saving_s`.

    A step that drafts γ tokens yields 1 + α·γ, so the saving is
    L · (plain_tpot − step / (1 + α·γ)) − extra TTFT. Infinite where no acceptance is enough.
    """
    left = curve.plain_tpot_s - (curve.extra_ttft_s + saving_s) / tokens
    if left <= 0:
        return math.inf
    return (curve.step_s / left - 1.0) / curve.draft_length


def _break_even(view: View, curve: BreakEven) -> Figure:
    data: list[dict[str, Any]] = []
    for point in view.summary.points:
        if point.mode == curve.mode and point.acceptance is not None:
            outcome = f"{seconds(abs(point.saving_s))} {'faster' if point.saving_s > 0 else 'slower'} than plain"
            tip = f"{point.output_tokens:.0f} tokens, {percent(point.acceptance)} accepted, {outcome}"
            data.append({"tokens": max(point.output_tokens, 1.0), "share": point.acceptance,
                         "tip": f"{point.request_class}: {tip}", **_fill(point.saving_s > 0)})  # fmt: skip
    lengths = [4.0, 300.0, *(one["tokens"] for one in data)]
    across: list[float] = np.geomspace(min(lengths) / 1.15, max(lengths) * 1.15, _STEPS + 1).tolist()
    levels = {"break-even": 0.0, **{f"saves {seconds(level)}": level for level in _levels(curve)}}
    curves: list[dict[str, Any]] = [
        {"tokens": tokens, "share": max(needed, 0.0), "raw": needed, "name": name, "top": 1.0}
        for name, level in levels.items() for tokens in across
        if (needed := needed_acceptance(curve, tokens, level)) <= 1.0
    ]  # fmt: skip
    scale = {"domain": list(levels), "range": ["var(--ink)", "var(--faint)", "var(--faint)"]}
    drawing = chart(
        760, 340,
        layer({"type": "area", "color": "var(--pays)"}, [one for one in curves if one["name"] == "break-even"],
              y2={"field": "top"}),
        layer("line", [one for one in curves if one["raw"] >= 0], color={**_NAMES, "scale": scale},
              strokeDash={**_NAMES, "scale": {**scale, "range": _DASHES}}),
        dots(data, size=25),
        x=axis("tokens", "output tokens", COUNT, domain=[across[0], across[-1]], log=True),
        y=axis("share", _SHARE, PERCENT, domain=[0, 1]),
    )  # fmt: skip
    rows = [
        (str(tokens), *(_needed(curve, tokens, level) for level in levels.values()))
        for tokens in (10, 20, 40, 80, 128, 200, 400)
    ]
    return Figure(
        f"Break-even of {curve.mode} (draft length {curve.draft_length}): {seconds(curve.plain_tpot_s)} per token "
        f"plain, {seconds(curve.step_s)} per step, {seconds(curve.extra_ttft_s)} more to the first token", drawing,
        "Each dot is a request. Above the curve, speculation pays by the measured times per token; "
        "the thinner lines mark the savings in the legend. Filled dots were faster than plain, hollow ones slower.",
        Table(("output tokens", *levels), rows, "Acceptance needed"),
    )  # fmt: skip


_NAMES = {"field": "name", "type": "nominal"}


def _fill(good: bool) -> dict[str, str]:
    return {"colour": "var(--yes)"} if good else {"colour": "var(--no)", "fill": HOLLOW}


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


def forecast(view: View) -> Block:
    """Predicted against measured saving, request by request, and how well the expected length met the real one."""
    data: list[dict[str, Any]] = []
    for point in view.summary.points:
        predicted_s, speculated = point.predicted_saving_s, (point.speculated or 0.0) >= 0.5
        if point.mode == view.speculative and predicted_s is not None:
            tip = (f"{point.request_class}: predicted {seconds(predicted_s)}, measured {seconds(point.saving_s)}, "
                   f"{'speculated' if speculated else 'decoded plainly'}")  # fmt: skip
            data.append({"predicted": predicted_s, "measured": point.saving_s, "tip": tip, **_fill(speculated)})
    if not data:
        return "Forecasts need the modes plain, speculative and routed."
    both = [one[name] for one in data for name in ("predicted", "measured")]
    low, high = np.quantile([0.0, *both], (0.01, 0.99))  # one stray value does not squeeze all others together
    domain = [low - (high - low) / 10, high + (high - low) / 10]
    exact = [{"predicted": end, "measured": end} for end in domain]
    zero = {"type": "rule", "color": "var(--faint)"}
    drawing = chart(
        400, 340,
        layer(zero, [{"predicted": 0.0}], y={"value": 0}, y2={"value": "height"}),
        layer(zero, [{"measured": 0.0}], x={"value": 0}, x2={"value": "width"}),
        layer({"type": "line", "color": "var(--ink)", "strokeDash": [4, 4]}, exact), dots(data, size=25),
        x=axis("predicted", "predicted saving", SECONDS, domain=domain),
        y=axis("measured", "measured saving", SECONDS, domain=domain),
    )  # fmt: skip
    figure = Figure(
        "Saving of speculation over plain: the gateway's forecast and what was measured", drawing,
        "Each dot is a request. On the diagonal the forecast was exact; filled dots were routed to "
        "speculation, hollow ones decoded plainly. Dots beyond the axes are drawn at their edge.",
    )  # fmt: skip
    return [figure, forecast_tables(view.oracle) if view.oracle else []]


def acceptance(view: View) -> Block:
    """How many draft tokens the target accepted: by class, and by position in the draft."""
    entries = [entry for entry in view.entries if entry.drafts.drafted and entry.mode in view.others]
    return [_by_class(view, entries), _by_position(view, entries)] if entries else "The servers report no draft tokens."


def _by_class(view: View, entries: list[Entry]) -> Figure:
    data = [
        {**view.look(entry), "value": one.acceptance,
         "tip": f"{entry.name}, {entry.mode}: {percent(one.acceptance)} of {one.drafted} draft tokens accepted, "
         f"{plain(one.tokens_per_step)} tokens per step"}
        for entry in entries if (one := entry.drafts)
    ]  # fmt: skip
    beside = {entry.name: f"{plain(entry.drafts.tokens_per_step)} / step" for entry in reversed(entries)}
    names = dict.fromkeys(entry.name for entry in entries)
    drawing = forest(300, data, view.others, {name: beside[name] for name in names},
                     axis("value", _SHARE, PERCENT, domain=[0, 1]))  # fmt: skip
    table = entry_table("Draft tokens", entries, {
        "drafted": lambda entry: str(entry.drafts.drafted),
        "accepted": lambda entry: str(entry.drafts.accepted),
        "rejected": lambda entry: str(entry.drafts.rejected),
        "acceptance": lambda entry: percent(entry.drafts.acceptance),
        "tokens per step": lambda entry: plain(entry.drafts.tokens_per_step),
        "target steps saved": lambda entry: count(entry.drafts.steps_saved),
    })  # fmt: skip
    return Figure(
        "Acceptance rate by class, with tokens per target step", drawing,
        "One row per request class, one dot per mode that drafts; on the right tokens per step.", table,
    )  # fmt: skip


def _by_position(view: View, entries: list[Entry]) -> Block:
    """One line per class in the speculative mode: the share accepted at each position among the steps that reached
    it, where enough did."""
    mode = view.speculative or view.others[0]
    caption = f"Acceptance by position in the draft ({mode})"
    classes = [cell.name for cell in view.by_class if cell.request_class != ALL]
    colours = {name: f"var(--s{number % _SLOTS})" for number, name in enumerate(classes)}
    data: list[dict[str, Any]] = []
    rows = []
    for entry in entries:
        for one in entry.drafts.positions if entry.mode == mode else ():
            if one.reached >= _FEW_STEPS:
                share, position = percent(one.share), one.position + 1
                rows.append((entry.name, str(position), str(one.reached), str(one.accepted), share))
                tip = f"{entry.name}: {share} of {one.reached} accepted at position {position}"
                data.append({"position": position, "share": one.share, "name": entry.name, "tip": tip,
                             "colour": colours.get(entry.name, "var(--ink)")})  # fmt: skip
    if not data:
        return f"{caption}: the servers do not report the positions of rejected draft tokens."
    look = {one["name"]: one["colour"] for one in data}
    ticks = sorted({one["position"] for one in data})
    x = axis("position", "position of the draft token", COUNT, domain=[0.5, ticks[-1] + 0.5])
    x["axis"]["values"] = ticks
    drawing = chart(
        300, 240,
        layer("line", data, color={**_NAMES, "scale": {"domain": list(look), "range": list(look.values())}}),
        dots(data, size=25), x=x, y=axis("share", "accepted where reached", PERCENT, domain=[0, 1]),
    )  # fmt: skip
    return Figure(
        caption, drawing,
        "One line per request class: the share of draft tokens accepted at each position, "
        f"among at least {_FEW_STEPS} steps whose earlier draft tokens were all accepted.",
        Table(("class", "position", "reached", "accepted", "share"), rows, caption),
    )  # fmt: skip
