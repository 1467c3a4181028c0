"""Rows of a results file, grouped into cases (all modes of one request in one round, at one load, with one draft), and
the cost of a row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec
from slipstream_core.types import Arm, LengthBin

from slipstream_tools.bench.arrivals import Load
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import PLAIN

UNLABELLED = "unlabelled"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`rows` are the whole answers by mode, `failed` the modes without one. `position` orders cases as they ran.

    The class is that of the bench file, else the task that the gateway saw; the length bin is that of the plain answer,
    else of any other. Both are the same for all modes; `length` is empty where nothing was answered.
    """

    index: int
    round: int
    concurrency: Load
    draft: str | None
    request_class: str
    length: str
    rows: dict[str, Row]
    failed: tuple[str, ...]
    position: int


def cases_of(rows: Iterable[Row]) -> list[Case]:
    """The cases of measured rows, in the order in which each was first seen."""
    grouped: dict[tuple[str | None, Load, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.key[:4]].append(row)
    classes = _classes(grouped.values())
    return [_case(group, position, classes) for position, group in enumerate(grouped.values())]


def by_place(cases: Iterable[Case]) -> dict[tuple[str | None, Load], list[Case]]:
    """Cases by draft and concurrency: only those of one place are comparable."""
    places: dict[tuple[str | None, Load], list[Case]] = defaultdict(list)
    for case in cases:
        places[case.draft, case.concurrency].append(case)
    return places


def _case(group: Sequence[Row], position: int, classes: dict[int, str]) -> Case:
    first = group[0]
    answered = {row.mode: row for row in group if row.error is None and row.e2e_s is not None}
    lead = answered.get(PLAIN) or next(iter(answered.values()), None)
    return Case(
        index=first.index,
        round=first.round,
        concurrency=first.concurrency,
        draft=first.draft,
        request_class=classes[first.index],
        length=str(LengthBin.of(lead.output_tokens)) if lead else "",
        rows=answered,
        failed=tuple(row.mode for row in group if row.mode not in answered),
        position=position,
    )


def _classes(groups: Iterable[Sequence[Row]]) -> dict[int, str]:
    """The class of each request by its index: one for all rounds, even where the gateway changed its mind."""
    seen: dict[int, Counter[str]] = defaultdict(Counter)
    for group in groups:
        for row in group:
            task = (row.request_class or UNLABELLED).partition("/")[0]
            seen[row.index][row.label or task] += 2 if row.mode == PLAIN else 1
    return {index: names.most_common(1)[0][0] for index, names in seen.items()}


_HOUR_S = 3600.0


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Per GPU-hour, by arm; None where unknown."""

    plain: float | None = None
    speculative: float | None = None

    @property
    def known(self) -> bool:
        return self.plain is not None and self.speculative is not None

    def cost(self, row: Row) -> float:
        """The cost of an answer, at a price of 1 where none is known. Of c requests in flight, which share the servers,
        each is charged 1/c of its time."""
        price = (self.speculative if row.arm == Arm.SPECULATIVE else self.plain) if self.known else 1.0
        return (row.e2e_s or 0.0) / row.load / _HOUR_S * (price or 0.0)
