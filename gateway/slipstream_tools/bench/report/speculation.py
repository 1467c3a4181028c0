"""Where speculation pays, how well the gateway predicted it, and how many draft tokens the target accepted."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from slipstream_tools.bench.report.formats import percent, plain, seconds
from slipstream_tools.bench.report.vega import COUNT, PERCENT, SECONDS, Spec, axis, chart, dots, forest, layer
from slipstream_tools.bench.report.view import HOLLOW, Block, Figure, Table, View, name_of
from slipstream_tools.bench.summary import ALL, BreakEven, Cell, LengthFit, Point, Speculation

_STEPS = 120
_FEW_STEPS = 30
_SLOTS = 6
_SHARE = "accepted ÷ drafted tokens"


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
    points = [point for point in view.summary.points if point.mode == curve.mode and point.acceptance is not None]
    lengths = [4.0, 300.0, *(max(point.output_tokens, 1.0) for point in points)]
    low, high = math.log(min(lengths) / 1.15), math.log(max(lengths) * 1.15)
    across = [math.exp(low + (high - low) * step / _STEPS) for step in range(_STEPS + 1)]
    names = {0.0: "break-even", **{level: f"saves {seconds(level)}" for level in _levels(curve)}}
    lines = [
        {"tokens": tokens, "share": needed, "name": name}
        for level, name in names.items()
        for tokens in across
        if 0.0 <= (needed := needed_acceptance(curve, tokens, level)) <= 1.0
    ]
    area = [
        {"tokens": tokens, "share": max(needed, 0.0), "top": 1.0}
        for tokens in across
        if (needed := needed_acceptance(curve, tokens)) <= 1.0
    ]
    shown = list(names.values())
    ink = {"domain": shown, "range": ["var(--ink)", "var(--faint)", "var(--faint)"]}
    drawing = chart(
        760, 340,
        layer({"type": "area", "color": "var(--pays)"}, area, y2={"field": "top"}),
        layer("line", lines, color={"field": "name", "type": "nominal", "scale": ink},
              strokeDash={"field": "name", "type": "nominal", "scale": {"domain": shown, "range": _DASHES}}),
        dots([_dot(point) for point in points], size=25),
        x=axis("tokens", "output tokens", COUNT, domain=[across[0], across[-1]], log=True),
        y=axis("share", _SHARE, PERCENT, domain=[0, 1]),
    )  # fmt: skip
    rows = [
        (str(tokens), *(_needed(curve, tokens, level) for level in names)) for tokens in (10, 20, 40, 80, 128, 200, 400)
    ]
    return Figure(
        f"Break-even of {curve.mode} (draft length {curve.draft_length}): {seconds(curve.plain_tpot_s)} per token "
        f"plain, {seconds(curve.step_s)} per step, {seconds(curve.extra_ttft_s)} more to the first token", drawing,
        "Each dot is a request. Above the curve, speculation pays by the measured times per token; "
        "the thinner lines mark the savings in the legend. Filled dots were faster than plain, hollow ones slower.",
        Table(("output tokens", *shown), rows, "Acceptance needed"),
    )  # fmt: skip


_DASHES = ([1, 0], [6, 3], [2, 3])


def _dot(point: Point) -> dict[str, object]:
    outcome = f"{seconds(abs(point.saving_s))} {'faster' if point.saving_s > 0 else 'slower'} than plain"
    tip = f"{point.request_class}: {point.output_tokens:.0f} tokens, {percent(point.acceptance)} accepted, {outcome}"
    return {"tokens": max(point.output_tokens, 1.0), "share": point.acceptance, "tip": tip, **_fill(point.saving_s > 0)}


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
    points = [
        point
        for point in view.summary.points
        if point.mode == view.speculative and point.predicted_saving_s is not None
    ]
    if not points:
        return "Forecasts need the modes plain, speculative and routed."
    both = [value for point in points for value in (point.saving_s, point.predicted_saving_s or 0.0)]
    low, high = np.quantile([0.0, *both], (0.01, 0.99))  # one stray value does not squeeze all others together
    domain = [low - (high - low) / 10, high + (high - low) / 10]
    data = []
    for point in points:
        predicted, speculated = point.predicted_saving_s or 0.0, (point.speculated or 0.0) >= 0.5
        tip = (f"{point.request_class}: predicted {seconds(predicted)}, measured {seconds(point.saving_s)}, "
               f"{'speculated' if speculated else 'decoded plainly'}")  # fmt: skip
        data.append({"predicted": predicted, "measured": point.saving_s, "tip": tip, **_fill(speculated)})
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
    return [figure, list(_forecast_tables(view))]


def _forecast_tables(view: View) -> Iterator[Block]:
    oracle = view.oracle
    if oracle is None:
        return
    first = f"first {oracle.first_requests}"
    rows = [
        ("rank correlation, all requests", plain(oracle.rank_correlation)),
        (f"rank correlation after the {first}", plain(oracle.rank_correlation_warm)),
    ]
    yield Table(("", ""), rows, "Rank correlation of predicted with measured saving (Spearman)", fold=False)
    yield from _lengths(oracle.lengths_warm, f"Expected length bin against the answer's, after the {first}")
    yield from _lengths(oracle.lengths, "Expected length bin against the answer's, all requests")


def _lengths(bins: tuple[LengthFit, ...], caption: str) -> Iterator[Table]:
    if bins:
        rows = [(one.length, percent(one.precision), percent(one.recall), str(one.predicted), str(one.actual))
                for one in bins]  # fmt: skip
        yield Table(("length", "precision", "recall", "expected", "actual"), rows, caption, fold=False)


def acceptance(view: View) -> Block:
    """How many draft tokens the target accepted: by class, and by position in the draft."""
    cells = [cell for cell in view.by_class if any(_drafts(cell, mode) for mode in view.others)]
    if not cells:
        return "The servers report no draft tokens."
    return [_by_class(view, cells), _by_position(view, cells)]


def _drafts(cell: Cell, mode: str) -> Speculation | None:
    figures = cell.modes.get(mode)
    found = figures.speculation if figures else None
    return found if found and found.drafted else None


def _by_class(view: View, cells: list[Cell]) -> Figure:
    found = [(cell, mode, one) for cell in cells for mode in view.others if (one := _drafts(cell, mode))]
    data = [
        {
            **view.look(cell, mode),
            "value": one.acceptance,
            "tip": f"{name_of(cell)}, {mode}: {percent(one.acceptance)} of {one.drafted} draft tokens accepted, "
            f"{plain(one.tokens_per_step)} tokens per step",
        }
        for cell, mode, one in found
    ]
    steps = {name_of(cell): f"{plain(one.tokens_per_step)} / step" for cell, _, one in reversed(found)}
    texts = {name_of(cell): steps[name_of(cell)] for cell in cells}
    drawing = forest(300, data, view.others, texts, axis("value", _SHARE, PERCENT, domain=[0, 1]))
    rows = [
        (name_of(cell), mode, str(one.drafted), str(one.accepted), str(one.rejected), percent(one.acceptance),
         plain(one.tokens_per_step), "–" if one.steps_saved is None else str(one.steps_saved))
        for cell, mode, one in found
    ]  # fmt: skip
    head = ("class", "mode", "drafted", "accepted", "rejected", "acceptance", "tokens per step", "target steps saved")
    return Figure(
        "Acceptance rate by class, with tokens per target step", drawing,
        "One row per request class, one dot per mode that drafts; on the right tokens per step.",
        Table(head, rows, "Draft tokens", text_columns=2),
    )  # fmt: skip


def _by_position(view: View, cells: list[Cell]) -> Block:
    """One line per class in the speculative mode: the share accepted at each position among the steps that reached
    it, where enough did."""
    mode = view.speculative or view.others[0]
    caption = f"Acceptance by position in the draft ({mode})"
    found = [
        (cell, position)
        for cell in cells
        if (one := _drafts(cell, mode))
        for position in one.positions
        if position.reached >= _FEW_STEPS
    ]
    if not found:
        return f"{caption}: the servers do not report the positions of rejected draft tokens."
    names = list(dict.fromkeys(name_of(cell) for cell, _ in found))
    others = [name_of(cell) for cell in cells if cell.request_class != ALL]
    look = {name: f"var(--s{others.index(name) % _SLOTS})" if name in others else "var(--ink)" for name in names}
    data = [
        {
            "position": one.position + 1,
            "share": one.share,
            "name": name_of(cell),
            "colour": look[name_of(cell)],
            "tip": f"{name_of(cell)}: {percent(one.share)} of {one.reached} accepted at position {one.position + 1}",
        }
        for cell, one in found
    ]
    colour: Spec = {"field": "name", "type": "nominal", "scale": {"domain": names, "range": list(look.values())}}
    ticks = sorted({one.position + 1 for _, one in found})
    x = axis("position", "position of the draft token", COUNT, domain=[0.5, ticks[-1] + 0.5])
    x["axis"]["values"] = ticks
    drawing = chart(
        300, 240, layer("line", data, color=colour), dots(data, size=25),
        x=x, y=axis("share", "accepted where reached", PERCENT, domain=[0, 1]),
    )  # fmt: skip
    rows = [(name_of(cell), str(one.position + 1), str(one.reached), str(one.accepted), percent(one.share))
            for cell, one in found]  # fmt: skip
    return Figure(
        caption, drawing,
        "One line per request class: the share of draft tokens accepted at each position, "
        f"among at least {_FEW_STEPS} steps whose earlier draft tokens were all accepted.",
        Table(("class", "position", "reached", "accepted", "share"), rows, caption),
    )  # fmt: skip
