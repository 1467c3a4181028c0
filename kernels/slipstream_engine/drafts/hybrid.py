"""Drafts of two sources: n-grams of the text, and a draft model. Each request takes one of them at each step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from slipstream_engine.drafts.sources import DraftRow, Drafts, ModelDrafts, Offer, PromptLookup, joined


class HybridDrafts:
    """Copies where a request's text repeats itself, drafts of a model elsewhere.

    The engine chooses between them for adaptive requests. The others copy wherever their text matches.
    """

    def __init__(self, lookup: PromptLookup, model: ModelDrafts) -> None:
        self._lookup, self._model = lookup, model
        self._by_model: set[int] = set()  # the slots for which the model drafted last

    def prefill(self, slot: int, tokens: list[int], end: int) -> None:
        self._lookup.prefill(slot, tokens, end)
        self._model.prefill(slot, tokens, end)

    def observe(self, slot: int, hidden: Tensor) -> None:
        self._model.observe(slot, hidden)

    def offers(self, row: DraftRow) -> list[Offer]:
        copies = self._lookup.offers(row)
        return copies if copies and not row.adaptive else [*copies, *self._model.offers(row)]

    def propose(self, rows: Sequence[DraftRow]) -> Drafts:
        copies = self._lookup.propose([row if row.copied else row._replace(most=0) for row in rows])
        drafts = self._model.propose([row._replace(most=0) if row.copied else row for row in rows])
        self._by_model = {row.slot for row, length in zip(rows, drafts.lengths, strict=True) if length}
        if not any(copies.lengths):
            return drafts
        return joined([copies, drafts]) if self._by_model else copies

    def commit(self, slot: int, accepted: int) -> None:
        if slot in self._by_model:
            self._model.commit(slot, accepted)

    def release(self, slot: int) -> None:
        self._lookup.release(slot)
        self._model.release(slot)
