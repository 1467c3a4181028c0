"""One comparison to show: the cells, points and rows of one concurrency and draft, and what sections are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from slipstream_tools.bench.cases import cases_of
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import (
    ALL,
    PLAIN,
    ROUTED,
    Cell,
    OracleFigures,
    Summary,
)

FEW = 100
"""Cells with fewer requests are drawn hollow."""
ORACLE = "oracle"
HOLLOW = "var(--card)"
_SLOTS = 6


class Table(NamedTuple):
    """A table whose first `text_columns` columns are text, the others figures; folded away where `fold`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    text_columns: int = 1
    fold: bool = True


class Figure(NamedTuple):
    """A chart with its caption, a description for assistive technology, and the table of its figures."""

    caption: str
    drawing: Markup
    description: str
    table: Table | None = None


class Panel(NamedTuple):
    """What is shown when the reader picks class number `panel`."""

    heading: str
    parts: Sequence[Block]
    panel: int


Block = Table | Figure | Panel | str | Sequence["Block"]
"""A text is a note; what stands in a sequence stands side by side, or below each other in a sequence of its own."""


class View(NamedTuple):
    """What one tab shows: the parts of `summary` at one concurrency and with one draft, and their rows. `key` is unique
    on the page and safe as an id."""

    key: str
    name: str
    summary: Summary
    rows: Sequence[Row]
    classes: Mapping[int, str]

    @property
    def modes(self) -> tuple[str, ...]:
        return self.summary.run.modes

    @property
    def oracle(self) -> OracleFigures | None:
        return next(iter(self.summary.oracle), None)

    @property
    def whole(self) -> Cell | None:
        """The cell of all classes and lengths."""
        return next((cell for cell in self.by_class if cell.request_class == ALL), None)

    @property
    def by_class(self) -> tuple[Cell, ...]:
        """One cell per class, all lengths together; that of all classes first."""
        return tuple(cell for cell in self.summary.cells if cell.length == ALL)

    @property
    def others(self) -> tuple[str, ...]:
        """The modes that are compared with plain."""
        return tuple(mode for mode in self.modes if mode != PLAIN)

    @property
    def speculative(self) -> str | None:
        """The mode that stands for always speculating: the first one that is neither plain nor routed."""
        return next((mode for mode in self.others if mode != ROUTED), None)

    def colour(self, mode: str) -> str:
        """The CSS variable of a mode, by which the page's script finds its marks."""
        return f"var(--mode-{self.modes.index(mode)})" if mode in self.modes else f"var(--{mode})"

    def look(self, cell: Cell, mode: str) -> dict[str, str]:
        """The row and the colours of the cell's mark for `mode`; hollow where there are few requests."""
        colour = self.colour(mode)
        return {
            "row": name_of(cell),
            "mode": mode,
            "colour": colour,
            **({"fill": HOLLOW} if cell.requests < FEW else {}),
        }


def views(summary: Summary, rows: Sequence[Row]) -> list[View]:
    """One view per draft and concurrency, in the summary's order."""
    classes = {case.index: case.request_class for case in cases_of(rows)}
    places = list(dict.fromkeys((cell.draft, cell.concurrency) for cell in summary.cells))
    several_drafts = len({draft for draft, _ in places}) > 1
    made: list[View] = []
    for draft, concurrency in places:
        name = f"{concurrency} request{'s' if concurrency > 1 else ''} at a time"
        if draft or several_drafts:
            name = f"{name}, draft {draft or 'as served'}"
        here = [row for row in rows if (row.draft, row.concurrency) == (draft, concurrency)]
        made.append(View(f"v{len(made)}", name, _part(summary, draft, concurrency), here, classes))
    return made


def _part(summary: Summary, draft: str | None, concurrency: int) -> Summary:
    kept: dict[str, Any] = {
        field: tuple(one for one in getattr(summary, field) if (one.draft, one.concurrency) == (draft, concurrency))
        for field in ("cells", "oracle", "break_even", "points")
    }
    verdicts = tuple(one for one in summary.verdicts if one.concurrency == concurrency)
    return msgspec.structs.replace(summary, verdicts=verdicts, **kept)


def class_names(summary: Summary) -> list[str]:
    """What a reader can pick: all classes together, then each one."""
    return ["all classes", *dict.fromkeys(cell.request_class for cell in summary.cells if cell.request_class != ALL)]


def name_of(cell: Cell) -> str:
    """The cell's class, and its length where it has one."""
    name = "all classes" if cell.request_class == ALL else cell.request_class
    return name if cell.length == ALL else f"{name}, {cell.length}"


def palette(modes: Sequence[str]) -> list[str]:
    """A CSS colour for each mode: plain and routed have their own, others take turns."""
    others = [mode for mode in modes if mode not in (PLAIN, ROUTED)]
    return [f"var(--{mode})" if mode not in others else f"var(--s{others.index(mode) % _SLOTS})" for mode in modes]
