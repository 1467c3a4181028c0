"""Layout of the tokens of one forward pass: ragged requests packed for matrix products, and padded for attention.

On a CPU, attention is computed for one request at a time where padding would cost more than the further calls: a batch
is padded to the most tokens and to the longest text of all of its requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Span(NamedTuple):
    """`tokens` consecutive tokens of the request in `slot`, the first at position `start`."""

    slot: int
    start: int
    tokens: int


# Padding of so many (token, position) pairs per attention feature and request takes as long as a call of its own:
# about 12 us, at 0.1 ns for each pair and feature.
_PAIRS_OF_A_CALL = 120_000


class Part(NamedTuple):
    """The attention of one request: its packed tokens `begin` to `end`, its slot, its cached positions, and a mask
    [1, 1, tokens, positions], None for a single token."""

    begin: int
    end: int
    slot: int
    length: int
    mask: Tensor | None


class StepBatch(NamedTuple):
    """Index tensors that all layers of a pass share. `T` packed tokens, `S` consecutive slots, up to `n` tokens per
    slot, up to `L` cached positions. With `parts`, attention takes one request at a time, and `mask` is None."""

    positions: Tensor  # [T] i64
    cache_rows: Tensor  # [T] i64
    padded_rows: Tensor | None  # [T] i64 into [S * n]; None when packed is padded already
    first_slot: int
    slots: int  # S
    tokens_per_slot: int  # n
    length: int  # L
    mask: Tensor | None  # [S, 1, n, L], 0 or -inf; None when every token attends to all L positions
    parts: tuple[Part, ...] = ()


def layout(
    spans: Sequence[Span], context_tokens: int, device: torch.device, dtype: torch.dtype, attention_features: int
) -> StepBatch:
    """Lay out `spans` (one per slot, slots ascending) for one pass of a model with so many `attention_features` (heads
    times the size of a head)."""
    first = spans[0].slot
    slots = spans[-1].slot - first + 1
    width = max(span.tokens for span in spans)
    length = max(span.start + span.tokens for span in spans)
    if len(spans) == 1:
        return _single(spans[0], context_tokens, device, dtype)
    positions = [p for s in spans for p in range(s.start, s.start + s.tokens)]
    cache_rows = [s.slot * context_tokens + p for s in spans for p in range(s.start, s.start + s.tokens)]
    index_rows = [positions, cache_rows]
    if device.type == "cpu" and _wastes(spans, slots * width * length, attention_features):
        index = torch.tensor(index_rows, device=device)
        return StepBatch(index[0], index[1], None, first, slots, width, length, None, _parts(spans, dtype))
    padded = [(s.slot - first) * width + i for s in spans for i in range(s.tokens)]
    last_seen = [0] * (slots * width)  # a padding row attends to position 0, because a fully masked row would be NaN
    for row, position in zip(padded, positions, strict=True):
        last_seen[row] = position
    index = torch.tensor([*index_rows, padded], device=device)
    seen = torch.tensor(last_seen, device=device).view(slots, 1, width, 1)
    uniform = len(positions) == slots * width
    return StepBatch(
        positions=index[0],
        cache_rows=index[1],
        padded_rows=None if uniform else index[2],
        first_slot=first,
        slots=slots,
        tokens_per_slot=width,
        length=length,
        mask=_mask(seen, length, dtype),
    )


def _wastes(spans: Sequence[Span], padded_pairs: int, attention_features: int) -> bool:
    """Whether padding to `padded_pairs` costs more than a call for each request."""
    pairs = sum(span.tokens * (span.start + span.tokens) for span in spans)
    return (padded_pairs - pairs) * attention_features > len(spans) * _PAIRS_OF_A_CALL


def _parts(spans: Sequence[Span], dtype: torch.dtype) -> tuple[Part, ...]:
    parts, begin = [], 0
    for span in spans:
        end, length = begin + span.tokens, span.start + span.tokens
        seen = torch.arange(span.start, length).view(1, 1, -1, 1)
        parts.append(Part(begin, end, span.slot, length, None if span.tokens == 1 else _mask(seen, length, dtype)))
        begin = end
    return tuple(parts)


def _single(span: Span, context_tokens: int, device: torch.device, dtype: torch.dtype) -> StepBatch:
    end = span.start + span.tokens
    positions = torch.arange(span.start, end, device=device)
    return StepBatch(
        positions=positions,
        cache_rows=positions + span.slot * context_tokens,
        padded_rows=None,
        first_slot=span.slot,
        slots=1,
        tokens_per_slot=span.tokens,
        length=end,
        mask=None if span.tokens == 1 else _mask(positions.view(1, 1, -1, 1), end, dtype),
    )


def _mask(last_seen: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    hidden = torch.arange(length, device=last_seen.device) > last_seen
    # An additive mask, built once. Every layer would convert a boolean mask again.
    return torch.zeros(hidden.shape, dtype=dtype, device=last_seen.device).masked_fill_(hidden, float("-inf"))
