"""How many draft tokens the target accepted: by class, and by position in the draft."""

from __future__ import annotations

from slipstream_tools.bench.report.formats import percent, plain, tick_percent, tick_plain
from slipstream_tools.bench.report.frame import Frame, figure, path, plot, table, x_axis, y_axis
from slipstream_tools.bench.report.markup import Markup, tag
from slipstream_tools.bench.report.scales import Scale, linear, spread
from slipstream_tools.bench.report.view import FEW, View, mode_class, mode_number
from slipstream_tools.bench.summary import ALL, Cell, Position, Speculation

_ROW = 30.0
_FEW_STEPS = 30


def acceptance(view: View) -> Markup:
    """Two plots side by side; a sentence where nothing was drafted."""
    cells = [cell for cell in view.by_class if any(_drafts(cell, mode) for mode in view.others)]
    if not cells:
        return tag("p", "The servers report no draft tokens, so there is nothing to show.", class_="note")
    return tag("div", _by_class(view, cells), _by_position(view, cells), class_="halves")


def _drafts(cell: Cell, mode: str) -> Speculation | None:
    figures = cell.modes.get(mode)
    found = figures.speculation if figures else None
    return found if found and found.drafted else None


def _by_class(view: View, cells: list[Cell]) -> Markup:
    frame = Frame(width=560, height=len(cells) * _ROW + 64, left=130, right=72)
    x = linear((0.0, 1.0), *frame.x_range, count=5)
    rows = [_class_row(view, cell, x, frame.top + index * _ROW) for index, cell in enumerate(cells)]
    drawing = plot(
        x_axis(frame, x, tick_percent, "accepted ÷ drafted tokens"), *rows,
        frame=frame, key=f"{view.key}-accept", title="Acceptance rate by class",
        description="One row per request class, one dot per mode that drafts; on the right tokens per step.",
    )  # fmt: skip
    rows_behind = [
        (_name(cell), mode, str(one.drafted), str(one.accepted), str(one.rejected), percent(one.acceptance),
         plain(one.tokens_per_step), "–" if one.steps_saved is None else str(one.steps_saved))
        for cell in cells for mode in view.others if (one := _drafts(cell, mode))
    ]  # fmt: skip
    head = ("class", "mode", "drafted", "accepted", "rejected", "acceptance", "tokens per step", "target steps saved")
    behind = table(head, rows_behind, caption="Draft tokens", text_columns=2)
    return figure(drawing, caption="Acceptance rate by class, with tokens per target step", behind=behind)


def _class_row(view: View, cell: Cell, x: Scale, top: float) -> Markup:
    middle = top + _ROW / 2
    parts = [
        tag("text", _name(cell)[:20], x=120.0, y=middle + 4, text_anchor="end",
            class_="row-label" + (" strong" if cell.request_class == ALL else "")),
        tag("line", x1=x(0.0), x2=x(1.0), y1=middle, y2=middle, class_="grid"),
    ]  # fmt: skip
    shown = [(mode, one) for mode in view.others if (one := _drafts(cell, mode)) and one.acceptance is not None]
    for index, (mode, one) in enumerate(shown):
        shift = (index - (len(shown) - 1) / 2) * 7
        tip = (f"{_name(cell)}, {mode}: {percent(one.acceptance)} of {one.drafted} draft tokens accepted, "
               f"{plain(one.tokens_per_step)} tokens per step")  # fmt: skip
        dot = tag("circle", cx=x(one.acceptance or 0.0), cy=middle + shift, r=5, data_tip=tip,
                  class_="mark dot" + (" few" if cell.requests < FEW else ""))  # fmt: skip
        parts.append(tag("g", dot, class_=mode_class(mode, view.modes), data_mode=mode_number(mode, view.modes)))
    if shown and shown[0][1].tokens_per_step is not None:
        parts.append(tag("text", f"{shown[0][1].tokens_per_step:.2f} / step", x=x(1.0) + 66, y=middle + 4,
                         text_anchor="end", class_="tick"))  # fmt: skip
    return tag("g", *parts)


def _name(cell: Cell) -> str:
    return "all classes" if cell.request_class == ALL else cell.request_class


def _by_position(view: View, cells: list[Cell]) -> Markup:
    """One line per class in the speculative mode: the chance of each position given that it was reached."""
    mode = view.speculative or view.others[0]
    lines = [(cell, often) for cell in cells if (one := _drafts(cell, mode)) and (often := _often(one.positions))]
    caption = f"Acceptance by position in the draft ({mode})"
    if not lines:
        text = "The servers do not say where drafts were rejected."
        return tag("figure", tag("figcaption", caption), tag("p", text, class_="note"))
    frame = Frame(width=480, height=316, right=110, top=28)
    last = max(position.position for _, positions in lines for position in positions)
    x = linear((1.0, max(last + 1.0, 2.0)), *frame.x_range, count=max(last, 1), zero=False)
    y = linear((0.0, 1.0), *frame.y_range, count=5)
    curves = [_line(view, cell, positions, x, y) for cell, positions in lines]
    drawing = plot(
        x_axis(frame, x, tick_plain, "position of the draft token"),
        y_axis(frame, y, tick_percent, "accepted where reached"), *curves, *_names(lines, x, y),
        frame=frame, key=f"{view.key}-position", title=caption,
        description="One line per request class: the share of draft tokens accepted at each position, "
        f"among at least {_FEW_STEPS} steps whose earlier draft tokens were all accepted.",
    )  # fmt: skip
    rows = [(_name(cell), str(one.position + 1), str(one.reached), str(one.accepted), percent(one.share))
            for cell, positions in lines for one in positions]  # fmt: skip
    head = ("class", "position", "reached", "accepted", "share")
    return figure(drawing, caption=caption, behind=table(head, rows, caption=caption))


def _often(positions: tuple[Position, ...]) -> tuple[Position, ...]:
    """Those that enough steps reached for a share to mean something."""
    return tuple(one for one in positions if one.reached >= _FEW_STEPS)


def _line(view: View, cell: Cell, positions: tuple[Position, ...], x: Scale, y: Scale) -> Markup:
    dots = [
        tag("circle", cx=x(one.position + 1.0), cy=y(one.share), r=3, class_="mark dot",
            data_tip=f"{_name(cell)}, position {one.position + 1}: {percent(one.share)} of {one.reached} accepted")
        for one in positions
    ]  # fmt: skip
    line = path([(x(one.position + 1.0), y(one.share)) for one in positions], class_="curve thin")
    return tag("g", line, *dots, class_="whole" if cell.request_class == ALL else "part",
               data_point=view.class_number(cell.request_class))  # fmt: skip


def _names(lines: list[tuple[Cell, tuple[Position, ...]]], x: Scale, y: Scale) -> list[Markup]:
    """Beside the plot, a name for each line; moved apart where they would cover each other."""
    ends = sorted((y(positions[-1].share), _name(cell), x(positions[-1].position + 1.0)) for cell, positions in lines)
    placed = []
    for (height, name, right), top in zip(ends, spread([end[0] for end in ends], 13.0, least=8.0), strict=True):
        placed.append(tag("line", x1=right + 5, y1=height, x2=x.end + 14, y2=top, class_="leader"))
        placed.append(tag("text", name[:16], x=x.end + 18, y=top + 4, class_="tick", aria_hidden="true"))
    return placed
