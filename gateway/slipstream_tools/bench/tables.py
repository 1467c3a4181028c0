"""Tables of figures, as the terminal prints them and the report page shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from slipstream_tools.bench.formats import interval, percent, plain, ratio
from slipstream_tools.bench.summary import Entry, LengthFit, OracleFigures


class Table(NamedTuple):
    """A table whose first `text_columns` columns are text, the others figures; the page folds it away with `fold`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    text_columns: int = 1
    fold: bool = True

    def lines(self) -> list[str]:
        """Caption and rows as text."""
        head = [self.head] if any(self.head) else []
        return [self.caption, *columns([*head, *self.rows], text_columns=self.text_columns)]


def columns(rows: Sequence[Sequence[str]], *, text_columns: int) -> list[str]:
    """Rows with aligned columns: the first `text_columns` to the left, numbers to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    aligns = ["<" if index < text_columns else ">" for index in range(len(widths))]
    return ["  ".join(map("{:{}{}}".format, row, aligns, widths)).rstrip() for row in rows]


Columns = Mapping[str, Callable[[Entry], str]]
"""Title to the text of an entry."""


def entry_table(caption: str, entries: Iterable[Entry], shown: Columns, *, fold: bool = True) -> Table:
    """One row per entry, named by its class and mode."""
    rows = [(entry.name, entry.mode, *(text(entry) for text in shown.values())) for entry in entries]
    return Table(("class", "mode", *shown), rows, caption, text_columns=2, fold=fold)


def oracle_table(figures: OracleFigures) -> Table:
    worst = figures.worst_class
    rows = [
        ("share of the oracle's saving, all requests", percent(figures.captured)),
        (f"first {figures.first_requests} requests", percent(figures.captured_first)),
        ("after those", percent(figures.captured_warm)),
        ("with the recorded time of the chosen arm", percent(figures.captured_by_choice)),
        ("mean E2E, plain ÷ routed", interval(figures.plain_over_routed, ratio)),
        ("mean E2E, speculative ÷ routed", interval(figures.speculative_over_routed, ratio)),
        *([(f"worst class ({worst.request_class}): routed over plain", interval(worst.slow_down, percent))]
          if worst else []),
    ]  # fmt: skip
    return Table(("", ""), rows, f"Routed against the per-request oracle, {figures.requests} requests", fold=False)


def forecast_tables(figures: OracleFigures) -> list[Table]:
    """The rank correlation of the forecast, and the expected length bins: after the first requests, and all."""
    after = f"after the first {figures.first_requests}"
    rows = [("all requests", plain(figures.rank_correlation)), (after, plain(figures.rank_correlation_warm))]
    found = [Table(("", ""), rows, "Rank correlation of predicted with measured saving (Spearman)", fold=False)]
    caption = "Expected length bin against the answer's"
    for bins, which in ((figures.lengths_warm, after), (figures.lengths, "all requests")):
        if bins:
            head = ("length", "precision", "recall", "expected", "actual")
            found.append(Table(head, [_fit(one) for one in bins], f"{caption}, {which}", fold=False))
    return found


def _fit(one: LengthFit) -> Sequence[str]:
    return one.length, percent(one.precision), percent(one.recall), str(one.predicted), str(one.actual)
