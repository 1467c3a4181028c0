"""One comparison to show: the cells, points and rows of one concurrency and draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream_tools.bench.cases import cases_of
from slipstream_tools.bench.report.markup import Markup, tag
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import (
    ALL,
    BASELINE,
    ROUTED,
    BreakEven,
    Cell,
    OracleFigures,
    Point,
    Summary,
    Verdict,
)

FEW = 100
"""Cells with fewer requests are drawn hollow."""
_SLOTS = 6


@dataclass(frozen=True, kw_only=True)
class View:
    """What the plots of one tab are drawn from; `key` is unique on the page and safe as an id."""

    key: str
    name: str
    concurrency: int
    modes: tuple[str, ...]
    cells: tuple[Cell, ...]
    verdicts: tuple[Verdict, ...]
    oracle: OracleFigures | None
    break_even: tuple[BreakEven, ...]
    points: tuple[Point, ...]
    rows: tuple[Row, ...]
    classes: Mapping[int, str]
    class_names: tuple[str, ...]

    @property
    def whole(self) -> Cell | None:
        """The cell of all classes and lengths."""
        return next((cell for cell in self.cells if cell.request_class == ALL and cell.length == ALL), None)

    @property
    def by_class(self) -> tuple[Cell, ...]:
        """One cell per class, all lengths together; that of all classes first."""
        return tuple(cell for cell in self.cells if cell.length == ALL)

    def class_number(self, request_class: str) -> str:
        """What the page's script knows a class by: 0 is all of them."""
        return str((ALL, *self.class_names).index(request_class))

    @property
    def others(self) -> tuple[str, ...]:
        """The modes that are compared with plain."""
        return tuple(mode for mode in self.modes if mode != BASELINE)

    @property
    def speculative(self) -> str | None:
        """The mode that stands for always speculating: the first one that is neither plain nor routed."""
        return next((mode for mode in self.others if mode != ROUTED), None)


def views(summary: Summary, rows: Sequence[Row]) -> list[View]:
    """One view per draft and concurrency, in the summary's order."""
    keys = dict.fromkeys((cell.draft, cell.concurrency) for cell in summary.cells)
    several_drafts = len({draft for draft, _ in keys}) > 1
    names = class_names(summary)
    return [
        _view(summary, rows, index, draft, concurrency, several_drafts, names)
        for index, (draft, concurrency) in enumerate(keys)
    ]


def class_names(summary: Summary) -> tuple[str, ...]:
    """Every class of the run, in the summary's order."""
    return tuple(dict.fromkeys(cell.request_class for cell in summary.cells if cell.request_class != ALL))


def _view(
    summary: Summary, rows: Sequence[Row], index: int, draft: str | None, concurrency: int, several_drafts: bool,
    names: tuple[str, ...],
) -> View:  # fmt: skip
    place = (draft, concurrency)
    points = tuple(point for point in summary.points if (point.draft, point.concurrency) == place)
    name = f"{concurrency} request{'s' if concurrency > 1 else ''} at a time"
    return View(
        key=f"v{index}", concurrency=concurrency, modes=summary.run.modes, points=points,
        class_names=names,
        name=f"{name}, draft {draft or 'as served'}" if several_drafts or draft else name,
        cells=tuple(cell for cell in summary.cells if (cell.draft, cell.concurrency) == place),
        verdicts=tuple(one for one in summary.verdicts if one.concurrency == concurrency),
        oracle=next((one for one in summary.oracle if (one.draft, one.concurrency) == place), None),
        break_even=tuple(one for one in summary.break_even if (one.draft, one.concurrency) == place),
        rows=tuple(row for row in rows if (row.draft, row.concurrency) == place),
        classes={case.index: case.request_class for case in cases_of(rows)},
    )  # fmt: skip


def mode_class(mode: str, modes: Sequence[str]) -> str:
    """The CSS class that gives `mode` its colour: plain and routed have their own, others take turns."""
    if mode in (BASELINE, ROUTED):
        return f"m-{mode}"
    others = [one for one in modes if one not in (BASELINE, ROUTED)]
    return f"m-{others.index(mode) % _SLOTS}"


def mode_number(mode: str, modes: Sequence[str]) -> str:
    """What the page's script knows `mode` by."""
    return str(list(modes).index(mode))


def legend(modes: Sequence[str]) -> Markup:
    """Buttons that show and hide modes, everywhere on the page."""
    buttons = [
        tag("button", tag("span", "", class_="swatch", aria_hidden="true"), mode, type="button", aria_pressed="true",
            class_=f"toggle {mode_class(mode, modes)}", data_toggle=mode_number(mode, modes))
        for mode in modes
    ]  # fmt: skip
    return tag("div", *buttons, class_="legend", role="group", aria_label="Modes shown")


def class_picker(names: Sequence[str]) -> Markup:
    """What picks the class whose latencies and requests the page shows."""
    options = [tag("option", name, value=str(index)) for index, name in enumerate(("all classes", *names))]
    return tag("label", "Class", tag("select", *options, id="class"), class_="pick", for_="class")
