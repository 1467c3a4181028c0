"""One comparison to show: the cells, points and rows of one concurrency and draft, and what sections are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from slipstream_tools.bench.cases import cases_of
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import ALL, PLAIN, ROUTED, Cell, Entry, OracleFigures, Summary, entries_of
from slipstream_tools.bench.tables import Table

FEW = 100
"""Cells with fewer requests are drawn hollow."""
ORACLE = "oracle"
HOLLOW = "var(--card)"
_SLOTS = 6


class Figure(NamedTuple):
    """A chart with its caption, a description for assistive technology, and the table of its figures."""

    caption: str
    drawing: Markup
    description: str
    table: Table | None = None


class Panel(NamedTuple):
    """What is shown when the reader picks the class `name`."""

    name: str
    heading: str
    parts: Sequence[Block]


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
    def by_class(self) -> list[Cell]:
        """One cell per class, all lengths together; that of all classes first."""
        return [cell for cell in self.summary.cells if cell.length == ALL]

    @property
    def entries(self) -> list[Entry]:
        """Every mode in every class."""
        return entries_of(self.by_class)

    @property
    def whole(self) -> dict[str, Entry]:
        """The entries of all classes together, by mode."""
        return {entry.mode: entry for entry in self.entries if entry.cell.request_class == ALL}

    @property
    def others(self) -> list[str]:
        """The modes that are compared with plain."""
        return [mode for mode in self.modes if mode != PLAIN]

    @property
    def speculative(self) -> str | None:
        """The mode that stands for always speculating: the first one that is neither plain nor routed."""
        return next((mode for mode in self.others if mode != ROUTED), None)

    def colour(self, mode: str) -> str:
        """The CSS variable of a mode, by which the page's script finds its marks."""
        return f"var(--mode-{self.modes.index(mode)})" if mode in self.modes else f"var(--{mode})"

    def look(self, entry: Entry) -> dict[str, Any]:
        """The row and the colours of an entry's mark; hollow where there are few requests."""
        look = {"row": entry.name, "mode": entry.mode, "colour": self.colour(entry.mode)}
        return {**look, "fill": HOLLOW} if entry.cell.requests < FEW else look


def views(summary: Summary, rows: Sequence[Row]) -> list[View]:
    """One view per draft and concurrency, in the summary's order."""
    classes = {case.index: case.request_class for case in cases_of(rows)}
    made: list[View] = []
    for draft, concurrency, part in summary.parts():
        name = f"{concurrency} request{'s' if concurrency > 1 else ''} at a time{f', draft {draft}' if draft else ''}"
        here = [row for row in rows if (row.draft, row.concurrency) == (draft, concurrency)]
        made.append(View(f"v{len(made)}", name, part, here, classes))
    return made


def palette(modes: Sequence[str]) -> list[str]:
    """A CSS colour for each mode: plain and routed have their own, others take turns."""
    others = [mode for mode in modes if mode not in (PLAIN, ROUTED)]
    return [f"var(--{mode})" if mode not in others else f"var(--s{others.index(mode) % _SLOTS})" for mode in modes]
