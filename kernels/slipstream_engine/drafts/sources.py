"""Draft sources: a smaller model, or the request's own text (prompt look-up).

A draft token is accepted if it equals the token of plain decoding, so that any rule may choose it. The sources here
choose the likeliest token, for sampled requests too: it is accepted at least as often as a token that is sampled with
the request's own noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Sequence_
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from slipstream_engine.model.model import Model
from slipstream_engine.model.step_batch import Span

LONGEST_EVIDENCE = 16


class DraftRow(NamedTuple):
    """A request to draft for: its slot, all its tokens and its maximum number of drafts (0 for none). `adaptive`: the
    engine weighs each draft token, so that unlikely ones may be offered as well. `copied`: that of the chosen offer."""

    slot: int
    tokens: list[int]
    most: int
    adaptive: bool = False
    copied: bool = False


class Offer(NamedTuple):
    """The draft tokens that a source could propose for a request, by their evidence (`draft_allocation.Chances`).
    `copied`: they are copies of the text, and need no pass of a draft model."""

    evidence: list[int]
    copied: bool


class Drafts(NamedTuple):
    """Drafts for a batch of B rows."""

    token_ids: Tensor  # [B, K] i64, -1 where a row has fewer
    lengths: list[int]  # B

    def proposed(self) -> list[list[int]]:
        """The draft tokens of each row."""
        return [ids[:count] for ids, count in zip(self.token_ids.tolist(), self.lengths, strict=True)]

    @classmethod
    def of(cls, rows: Sequence_[list[int]], device: torch.device) -> Drafts:
        """The drafts in lists, one for each request."""
        width = max(map(len, rows))
        padded = [row + [-1] * (width - len(row)) for row in rows]
        ids = torch.tensor(padded, dtype=torch.int64, device=device).view(len(rows), width)
        return cls(ids, [len(row) for row in rows])

    @classmethod
    def none(cls, rows: int, device: torch.device) -> Drafts:
        """No drafts for any of `rows` requests."""
        return cls(torch.empty(rows, 0, dtype=torch.int64, device=device), [0] * rows)


def joined(parts: Sequence_[Drafts]) -> Drafts:
    """The drafts of several sources for one batch, in which each request has those of at most one."""
    if len(parts) == 1:
        return parts[0]
    lengths = [max(of_row) for of_row in zip(*(part.lengths for part in parts), strict=True)]
    ids = parts[0].token_ids.new_full((len(lengths), max(lengths)), -1)
    for part in parts:
        ids[:, : part.token_ids.shape[1]] = torch.maximum(ids[:, : part.token_ids.shape[1]], part.token_ids)
    return Drafts(ids, lengths)


class DraftSource(Protocol):
    """Proposes tokens for the requests of a batch; `commit` reports the accepted ones."""

    def prefill(self, slot: int, tokens: list[int], end: int) -> None:
        """Process `tokens[:end]` of the request in `slot`, except those already processed."""

    def observe(self, slot: int, hidden: Tensor) -> None:
        """`hidden` [n, hidden] is the target's output for the next n tokens of the request in `slot`. It comes in the
        order of the tokens, before they are passed to `prefill`, and without rejected drafts."""

    def offers(self, row: DraftRow) -> list[Offer]:
        """What `propose` could return for `row`: alternatives, none if there is nothing to draft from."""

    def propose(self, rows: Sequence_[DraftRow]) -> Drafts:
        """Draft for `rows` (slots ascending)."""

    def commit(self, slot: int, accepted: int) -> None:
        """The first `accepted` tokens of the last proposal for `slot` were accepted."""

    def release(self, slot: int) -> None:
        """The request in `slot` has ended."""


class ModelDrafts:
    """Drafts from a smaller model with its own cache, in the same slots as the target's: its likeliest tokens."""

    shift = 0
    """How much later the token is that the cache's position j holds."""

    def __init__(self, model: Model, slots: int, vocab_rows: int) -> None:
        self._model, self._cache = model, model.new_cache(slots)
        self._cached = [0] * slots  # tokens of each slot's request with valid keys and values
        self._written = [0] * slots  # positions ever written for each slot's request, rejected drafts included
        self._proposed_from = [0] * slots
        self._vocab_rows = min(vocab_rows, model.config.vocab_rows)  # either may be padded further
        self._clamp = vocab_rows > model.config.vocab_rows

    def prefill(self, slot: int, tokens: list[int], end: int) -> None:
        # With a shift, the last known pair of tokens is left: its output gives the first draft.
        start, end = self._cached[slot], min(end, len(tokens) - 2 * self.shift, self._model.context_tokens)
        if start < end:
            self._forward([Span(slot, start, end - start)], tokens[start + self.shift : end + self.shift])
            self._cached[slot] = end

    def observe(self, slot: int, hidden: Tensor) -> None:
        """Nothing to do: the draft has hidden states of its own."""

    def offers(self, row: DraftRow) -> list[Offer]:
        """The evidence of a draft token is its position, above those of copied ones."""
        first = LONGEST_EVIDENCE + 1
        return [Offer(list(range(first, first + min(row.most, self._room(row)))), copied=False)]

    def propose(self, rows: Sequence_[DraftRow]) -> Drafts:
        device = self._model.device
        lengths = [min(row.most, self._room(row)) for row in rows]
        width = max(lengths)
        active = [index for index, length in enumerate(lengths) if length > 0]
        fed = {index: rows[index].tokens[self._cached[rows[index].slot] + self.shift :] for index in active}
        ids = torch.full((len(rows), width), -1, dtype=torch.int64, device=device)
        for index in active:
            self._proposed_from[rows[index].slot] = len(rows[index].tokens)
        for step in range(width):
            active = [index for index in active if lengths[index] > step]
            token_ids = self._feed([rows[index].slot for index in active], [fed[index] for index in active])
            ids[active, step] = token_ids
            if step + 1 < width:
                fed = {index: [token] for index, token in zip(active, token_ids.tolist(), strict=True)}
        return Drafts(ids, lengths)

    def commit(self, slot: int, accepted: int) -> None:
        # The last draft of a proposal was never fed, so it is not cached even if it was accepted.
        self._cached[slot] = min(self._cached[slot], self._proposed_from[slot] + accepted)

    def release(self, slot: int) -> None:
        self._cache.clear(slot, self._written[slot])
        self._cached[slot] = self._written[slot] = 0

    def _room(self, row: DraftRow) -> int:
        """Number of drafts that fit the draft's context, which may be shorter than the target's."""
        return max(0, self._model.context_tokens + 1 - len(row.tokens))

    def _feed(self, slots: list[int], tokens: list[list[int]]) -> Tensor:
        """Run each slot's new `tokens`. Returns the likeliest token [slots] i64 after the last token of each."""
        spans = [Span(slot, self._cached[slot], len(new)) for slot, new in zip(slots, tokens, strict=True)]
        hidden = self._forward(spans, [token for new in tokens for token in new])
        for span in spans:
            self._cached[span.slot] = span.start + span.tokens
        ends = [end - 1 for end in itertools.accumulate(span.tokens for span in spans)]
        last = hidden if len(ends) == len(hidden) else hidden[ends]
        return self._likeliest(slots, last)

    def _likeliest(self, slots: list[int], last: Tensor) -> Tensor:
        """The likeliest token [slots] i64 after the `last` hidden states [slots, hidden]."""
        return self._model.logits(last)[:, : self._vocab_rows].argmax(-1)

    def _note_written(self, spans: list[Span]) -> None:
        for span in spans:
            self._written[span.slot] = max(self._written[span.slot], span.start + span.tokens)

    def _forward(self, spans: list[Span], tokens: list[int]) -> Tensor:
        model = self._model
        self._note_written(spans)
        batch = model.layout(spans)
        token_ids = torch.tensor(tokens, device=model.device)
        if self._clamp:
            # The target has more padding rows than the draft. Any known id works, because drafts may be wrong.
            token_ids.clamp_(max=self._vocab_rows - 1)
        return model.forward(token_ids, batch, self._cache)


class PromptLookup:
    """Drafts copied from an earlier occurrence of the request's last tokens (prompt look-up decoding, Saxena 2023).

    Of the last 3, then 2 tokens, the latest earlier occurrence wins; the tokens after it are the drafts. For adaptive
    requests an occurrence of the last token alone is used as well: it pays while rows are cheap.
    """

    longest, shortest, shortest_adaptive = 3, 2, 1

    def __init__(self, slots: int, device: torch.device) -> None:
        self._device = device
        self._seen = [0] * slots  # tokens of each slot's request that are indexed
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in range(slots)]

    def prefill(self, slot: int, tokens: list[int], end: int) -> None:
        after = self._after[slot]
        # An n-gram is indexed once a token follows it, so the end of the text does not match itself.
        for index in range(self._seen[slot], end):
            for size in range(self.shortest_adaptive, self.longest + 1):
                if index >= size:
                    after[tuple(tokens[index - size : index])] = index
        self._seen[slot] = max(self._seen[slot], end)

    def observe(self, slot: int, hidden: Tensor) -> None:
        """Nothing to do: the text is enough."""

    def offers(self, row: DraftRow) -> list[Offer]:
        """The evidence of a draft token is the length of the match up to it: a long copy is likely to go on."""
        start = self._match(row)
        if start is None or not row.most:
            return []
        length = common_suffix(row.tokens, start, LONGEST_EVIDENCE)
        return [Offer([min(length + position, LONGEST_EVIDENCE) for position in range(row.most)], copied=True)]

    def propose(self, rows: Sequence_[DraftRow]) -> Drafts:
        return Drafts.of([self._look_up(row) if row.most else [] for row in rows], self._device)

    def commit(self, slot: int, accepted: int) -> None:
        """Nothing to do: only committed tokens are ever indexed."""

    def release(self, slot: int) -> None:
        self._seen[slot] = 0
        self._after[slot].clear()

    def _look_up(self, row: DraftRow) -> list[int]:
        start = self._match(row)
        return [] if start is None else _repeat(row.tokens[start:], row.most)

    def _match(self, row: DraftRow) -> int | None:
        """The position after the earlier occurrence of the last tokens, None if there is none."""
        self.prefill(row.slot, row.tokens, len(row.tokens))
        shortest = self.shortest_adaptive if row.adaptive else self.shortest
        for size in range(self.longest, shortest - 1, -1):
            start = self._after[row.slot].get(tuple(row.tokens[-size:]))
            if start is not None:
                return start
        return None


def common_suffix(tokens: list[int], end: int, most: int) -> int:
    """The number of last tokens that `tokens[:end]` and `tokens` have in common, at most `most`."""
    for length in range(min(most, end)):
        if tokens[end - 1 - length] != tokens[-1 - length]:
            return length
    return min(most, end)


def _repeat(tokens: list[int], count: int) -> list[int]:
    """The first `count` of `tokens`, repeated cyclically: repeating text has this period."""
    return list(itertools.islice(itertools.cycle(tokens), count))
