"""One comparison to show: the cells, points and rows of one concurrency and draft, and what sections are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from slipstream_tools.bench.arrivals import Load
from slipstream_tools.bench.cases import cases_of
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import ALL, PLAIN, ROUTED, Entry, Summary, entries_of
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


class View:
    """What one tab shows: `part` is the summary at one concurrency and with one draft, `rows` are its measured rows and
    `classes` the class of each request. `key` is unique on the page and safe as an id.

    `by_class` has one cell per class, all lengths together, that of all classes first; `entries` has every mode in each
    of them, `whole` those of all classes by mode. `others` are the modes that are compared with plain; `speculative`
    stands for always speculating: the first one that is neither plain nor routed.
    """

    def __init__(self, key: str, name: str, part: Summary, rows: Sequence[Row], classes: Mapping[int, str]) -> None:
        self.key, self.name, self.summary, self.rows, self.classes = key, name, part, rows, classes
        self.modes = part.run.modes
        self.others = [mode for mode in self.modes if mode != PLAIN]
        self.speculative = next((mode for mode in self.others if mode != ROUTED), None)
        self.oracle = next(iter(part.oracle), None)
        self.by_class = [cell for cell in part.cells if cell.length == ALL]
        self.entries = entries_of(self.by_class)
        self.whole = {entry.mode: entry for entry in self.entries if entry.cell.request_class == ALL}

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
        name = f"{_tab_name(concurrency)}{f', draft {draft}' if draft else ''}"
        here = [row for row in rows if (row.draft, row.concurrency) == (draft, concurrency)]
        made.append(View(f"v{len(made)}", name, part, here, classes))
    return made


def palette(modes: Sequence[str]) -> list[str]:
    """A CSS colour for each mode: plain and routed have their own, others take turns."""
    others = [mode for mode in modes if mode not in (PLAIN, ROUTED)]
    return [f"var(--{mode})" if mode not in others else f"var(--s{others.index(mode) % _SLOTS})" for mode in modes]


def _tab_name(load: Load) -> str:
    if isinstance(load, str):
        return load
    return f"{load} request{'s' if load > 1 else ''} at a time"
