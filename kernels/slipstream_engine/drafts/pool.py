"""Several drafts in one engine: each request has one of them, from its start to its end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from slipstream_engine.contract.protocol import DraftStanding
from slipstream_engine.drafts.choice import MOST_GROUPS, DraftBandit
from slipstream_engine.drafts.sources import DraftRow, Drafts, DraftSource, Offer, joined

logger = logging.getLogger(__name__)

_EVIDENCE = 128
"""Evidence of different drafts, and of different groups, differs by multiples of this: what is learned of one says
nothing of another."""
Drafted = Callable[[int, list[int]], None]
_FEWEST_TOKENS = 4  # an answer of fewer says little of its draft


class DraftPool:
    """The `DraftSource` of an engine, made of others by their names. `group` names requests that are alike; which draft
    suits them is learned."""

    def __init__(
        self, sources: Mapping[str, DraftSource], choice: DraftBandit | None = None, *, grows: bool = False
    ) -> None:
        self._names = list(sources)
        self.has_choice = grows or len(sources) > 1
        self._sources: list[DraftSource | None] = [*sources.values()]  # None: retired, and no request has it
        self._retired: set[int] = set()
        self.choice = choice or DraftBandit(len(sources))
        self._chosen: dict[int, int] = {}
        self._shift: dict[int, int] = {}
        self._shifts: dict[tuple[str, int], int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the drafts that new requests may have."""
        return tuple(name for number, name in enumerate(self._names) if number not in self._retired)

    def add(self, name: str, source: DraftSource, only: str = "") -> None:
        """Add a draft for requests that start from now on. `only` is as in `DraftBandit.add`. No served draft has
        the same name."""
        self._names.append(name)
        self._sources.append(source)
        self.choice.add(only)

    def retire(self, name: str) -> None:
        """Give the draft `name` to no more requests. Its memory is freed when its last request has ended."""
        number = len(self._names) - 1 - self._names[::-1].index(name)  # earlier ones of this name are retired
        self.choice.retire(number)
        self._retired.add(number)
        self._free()

    def start(self, slot: int, group: str) -> str:
        """Choose the draft for a new request in `slot`. Returns its name."""
        number = self._chosen[slot] = self.choice.choose(group)
        if len(self._shifts) < MOST_GROUPS * len(self._names):
            self._shifts.setdefault((group, number), _EVIDENCE * len(self._shifts))
        self._shift[slot] = self._shifts.get((group, number), 0)
        return self._names[number]

    def number(self, slot: int) -> int:
        """The number of the draft of the request in `slot`."""
        return self._chosen.get(slot, 0)

    def learn(self, slot: int, group: str, seconds: float, tokens: int) -> None:
        """The request in `slot` has taken `seconds` of engine time for `tokens` after its first one."""
        if tokens < _FEWEST_TOKENS or len(self._names) == 1:
            return
        before = self.choice.standings(group)
        self.choice.learn(group, self._chosen[slot], seconds, tokens)
        for number, (old, new) in enumerate(zip(before, self.choice.standings(group), strict=True)):
            if new != old:
                what, requests = new.replace("_", " "), group or "all requests"
                logger.info("draft %s is %s for %s", self._names[number], what, requests)

    def standings(self) -> list[DraftStanding]:
        """What is known of each draft that is served, by groups."""
        costs = self.choice.costs()
        return [
            DraftStanding(
                group=group,
                draft=self._names[number],
                state=state.value,
                answers=round(weight),
                seconds_per_token=None if math.isnan(cost) else cost,
            )
            for group, states in self.choice.all_standings().items()
            for number, (state, (weight, cost)) in enumerate(zip(states, costs[group], strict=True))
            if self.choice.is_for(number, group)
        ]

    def prefill(self, slot: int, tokens: list[int], end: int) -> None:
        self._of(slot).prefill(slot, tokens, end)

    def observe(self, slot: int, hidden: Tensor) -> None:
        self._of(slot).observe(slot, hidden)

    def offers(self, row: DraftRow) -> list[Offer]:
        offers = self._of(row.slot).offers(row)
        shift = self._shift.get(row.slot, 0)
        return [_shifted(offer, shift) for offer in offers] if shift else offers

    def propose(self, rows: Sequence[DraftRow], drafted: Drafted = lambda number, lengths: None) -> Drafts:
        """Draft for `rows`, one source after the other. `drafted` is called after each source, with its number and the
        draft lengths of all rows."""
        parts = []
        for number in sorted({self.number(row.slot) for row in rows if row.most}):
            own = [row if self.number(row.slot) == number else row._replace(most=0) for row in rows]
            parts.append(self._source(number).propose(own))
            drafted(number, parts[-1].lengths)
        return joined(parts)

    def commit(self, slot: int, accepted: int) -> None:
        self._of(slot).commit(slot, accepted)

    def release(self, slot: int) -> None:
        for source in self._sources:
            if source is not None:
                source.release(slot)
        self._chosen.pop(slot, None)
        self._shift.pop(slot, None)
        if self._retired:
            self._free()

    def _free(self) -> None:
        for number in self._retired.difference(self._chosen.values()):
            self._sources[number] = None

    def _of(self, slot: int) -> DraftSource:
        return self._source(self.number(slot))

    def _source(self, number: int) -> DraftSource:
        source = self._sources[number]
        assert source is not None, "a request has this draft"
        return source


def _shifted(offer: Offer, shift: int) -> Offer:
    return offer._replace(evidence=[evidence + shift for evidence in offer.evidence])
