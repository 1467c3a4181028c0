"""Loads of a request's parameters and of tiles of its adjusted logits, for all verification kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_primitives import adjusted

_CHUNK = tl.constexpr(256)


@triton.jit
def first_row(step, request):
    """The first row of `request` in the logits, int64. For packed rows it is the sum of the lengths before it."""
    if step.row_start is not None:
        row = tl.load(step.row_start + request)
    else:
        row = request.to(tl.int64)
        for at in range(0, request, _CHUNK):
            earlier = at + tl.arange(0, _CHUNK)
            row += tl.sum(tl.load(step.draft_lengths + earlier, mask=earlier < request, other=0), 0)
    return row


@triton.jit
def draft_length(step, request, draft_count):
    """The number of drafted tokens, int32, clamped to 0..K."""
    length = tl.load(step.draft_lengths + request)
    return tl.minimum(tl.maximum(length, 0), draft_count).to(tl.int32)


@triton.jit
def drafted_token(step, request, j, length):
    """The token drafted at step `j`, int32; -1 if there is none or it is outside the target's vocabulary, so that it is
    never used as an address."""
    token = tl.load(step.draft_token_ids + request.to(tl.int64) * step.draft_stride + j, mask=j < length, other=-1)
    return tl.where((token >= 0) & (token < step.vocabulary), token, -1).to(tl.int32)


@triton.jit
def inverse_temperature_of(temperature):
    """1 / T; 1 for greedy requests."""
    return tl.where(temperature > 0, tl.div_rn(1.0, tl.where(temperature > 0, temperature, 1.0)), 1.0)


@triton.jit
def is_filtered(step, filters, request):
    """Whether top-k, top-p or min-p may drop something from the request's rows."""
    filtered = tl.load(step.temperature + request) > 0
    if filters.top_k is not None:
        top_k = tl.load(filters.top_k + request)
        dropping = (top_k > 0) & (top_k < step.vocabulary)
        dropping = dropping | (tl.load(filters.top_p + request) < 1) | (tl.load(filters.min_p + request) > 0)
        filtered = filtered & dropping
    else:
        filtered = False
    return filtered


@triton.jit
def adjust(x, ids, first, step, adjustments, request, row, j, BLOCK: tl.constexpr):
    """`x` with `adjustments` applied, if there are any."""
    has_bias: tl.constexpr = adjustments.bias_offsets is not None
    has_penalties: tl.constexpr = adjustments.seen_offsets is not None
    has_bitmask: tl.constexpr = adjustments.bitmask is not None
    if has_bias or has_penalties or has_bitmask:
        x = adjusted(
            x,
            ids,
            first,
            first + BLOCK,
            step.vocabulary,
            request,
            row,
            j,
            step.draft_token_ids,
            step.draft_stride,
            adjustments.bias_offsets,
            adjustments.bias_ids,
            adjustments.bias_values,
            adjustments.repetition,
            adjustments.frequency,
            adjustments.presence,
            adjustments.seen_offsets,
            adjustments.seen_ids,
            adjustments.seen_counts,
            adjustments.bitmask,
            adjustments.bitmask_stride,
            has_bias,
            has_penalties,
            has_bitmask,
        )
    return x


@triton.jit
def load_adjusted(step, adjustments, request, row, j, first, BLOCK: tl.constexpr):
    """The adjusted logits of tokens `first` to `first + BLOCK` of a row, float32 [BLOCK], -inf past the vocabulary.
    `row` int64 is its place in the logits, `j` its step."""
    ids = first + tl.arange(0, BLOCK)
    at = step.logits + row * step.row_stride
    x = tl.load(at + ids, mask=ids < step.vocabulary, other=float("-inf")).to(tl.float32)
    return adjust(x, ids, first, step, adjustments, request, row, j, BLOCK)


@triton.jit
def vector_ids(first, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """The ids of a tile in the shape [BLOCK / VECTOR, VECTOR]: int32.

    VECTOR tokens are one 16-byte load of a thread. A reduction over the second axis stays within a thread and needs
    registers for a few vectors only.
    """
    return first + tl.arange(0, BLOCK // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]


@triton.jit
def load_vectors(step, adjustments, request, row, j, first, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """As `load_adjusted`, in the shape of `vector_ids`."""
    ids = vector_ids(first, BLOCK, VECTOR)
    at = step.logits + row * step.row_stride
    x = tl.load(at + ids, mask=ids < step.vocabulary, other=float("-inf")).to(tl.float32)
    return adjust(x, ids, first, step, adjustments, request, row, j, BLOCK)
