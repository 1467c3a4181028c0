"""The adjustments of a step's logits: logit bias, penalties, grammars and minimum lengths of its requests.

They are those of plain decoding in each row: a drafted token counts as output in the rows after it, for the penalties
and for the grammar. So speculation changes no answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Sequence_

import numpy as np
import torch
from slipstream_kernels import LogitAdjustments

from slipstream_engine.contract.types import GenerationRequest, Penalties
from slipstream_engine.drafts.sources import Drafts
from slipstream_engine.step.sequence import Sequence
from slipstream_engine.text.grammar import Mask, new_masks

_OFF = Penalties()
_NO_DRAFT: tuple[int, ...] = ()


def adjustments_of(
    sequences: Sequence_[Sequence], drafts: Drafts, vocabulary: int, device: torch.device
) -> LogitAdjustments | None:
    """The adjustments for the rows of `sequences` with their `drafts`; None without any."""
    requests = [sequence.request for sequence in sequences]
    biased = any(request.logit_bias for request in requests)
    penalised = any(request.penalties is not None for request in requests)
    masked = any(_is_masked(sequence) for sequence in sequences)
    if not (biased or penalised or masked):
        return None
    penalties = [request.penalties or _OFF for request in requests]
    given = LogitAdjustments.of(
        vocabulary,
        bias=[request.logit_bias for request in requests] if biased else None,
        prompts=[_counted(request, request.prompt_ids) for request in requests] if penalised else None,
        outputs=[_counted(s.request, s.tokens[len(s.request.prompt_ids) :]) for s in sequences] if penalised else None,
        repetition=[each.repetition for each in penalties] if penalised else None,
        frequency=[each.frequency for each in penalties] if penalised else None,
        presence=[each.presence for each in penalties] if penalised else None,
        device=device,
    )
    if not masked:
        return given
    mask = torch.from_numpy(_masks(sequences, drafts.proposed(), vocabulary)).to(device)
    return LogitAdjustments(**{**vars(given), "bitmask": mask})


def permitted(sequences: Sequence_[Sequence], most: Sequence_[int], drafts: Drafts) -> Drafts:
    """`drafts` as far as the grammars of their requests allow them: the rows of other tokens would be wasted. Where a
    grammar prescribes more tokens than that, these are the draft, up to `most` of each request."""
    if all(sequence.grammar is None for sequence in sequences):
        return drafts
    rows = zip(sequences, most, drafts.proposed(), strict=True)
    return Drafts.of([_draft(sequence, limit, ids) for sequence, limit, ids in rows], drafts.token_ids.device)


def _draft(sequence: Sequence, most: int, ids: list[int]) -> list[int]:
    grammar = sequence.grammar
    if grammar is None:
        return ids
    allowed = ids[: grammar.allowed(ids)]
    return max(allowed, grammar.forced(most), key=len)


def _counted(request: GenerationRequest, tokens: Sequence_[int]) -> Sequence_[int]:
    return _NO_DRAFT if request.penalties is None else tokens


def _is_masked(sequence: Sequence) -> bool:
    return sequence.grammar is not None or sequence.output_tokens < sequence.request.min_tokens


def _masks(sequences: Sequence_[Sequence], drafts: Sequence_[Sequence_[int]], vocabulary: int) -> Mask:
    masks = new_masks(sum(1 + len(draft) for draft in drafts), vocabulary)
    starts = itertools.accumulate((1 + len(draft) for draft in drafts), initial=0)
    for sequence, draft, start in zip(sequences, drafts, starts, strict=False):
        rows = masks[start : start + 1 + len(draft)]
        if sequence.grammar is not None:
            sequence.grammar.fill(rows, draft)
        early = sequence.request.min_tokens - sequence.output_tokens
        if early > 0:
            _forbid(rows[:early], sequence.end_ids)
    return masks


def _forbid(rows: Mask, token_ids: frozenset[int]) -> None:
    """Forbid `token_ids`, except in rows that allow no other token: there, the grammar has ended."""
    words = rows.view(np.uint32)
    others = words.copy()
    for token in token_ids:
        others[:, token // 32] &= ~np.uint32(1 << token % 32)
    np.copyto(words, others, where=others.any(axis=1, keepdims=True))
