"""The smallest logit of a row that top-k, top-p and min-p keep. Thresholds are exact (see `kernel_search`)."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_primitives import exponentials
from slipstream_kernels.spec_verify.kernel_search import held_values, key_of, smallest_kept, value_of
from slipstream_kernels.spec_verify.kernel_tile import load_vectors

_TAIL_SLACK = tl.constexpr(1e-3)
"""Margin of the bound on the logits that top-p keeps, in units of temperature, against rounding."""


@triton.jit
def threshold(
    step,
    adjustments,
    filters,
    statistics,
    request,
    j,
    row,
    best,
    whole,
    maxima,
    inverse_temperature,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    HELD: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The row's smallest kept logit, float32.

    `best`, `whole` and `maxima` are the row's largest logit, the sum of exp((x - best) / T) over the whole row, and the
    maxima of its tiles.
    """
    candidates = statistics.candidates + tl.program_id(0) * HELD
    top_k, top_p = tl.load(filters.top_k + request), tl.load(filters.top_p + request)
    limited, nucleus = (top_k > 0) & (top_k < step.vocabulary), top_p < 1
    cut = _min_p_cut(filters, request, best, inverse_temperature)
    # The top-k and top-p searches need not resolve values that min-p drops anyway.
    end = key_of(cut, SHIFT) - (cut > float("-inf")).to(tl.int32)

    value = tl.full([], float("-inf"), tl.float32)
    mass = whole
    held = tl.full([], -1, tl.int32)
    for stage in range(2):
        if tl.where(stage == 0, limited, nucleus):
            low = key_of(value, SHIFT) - (value > float("-inf")).to(tl.int32)
            low = tl.where((stage == 0) & nucleus, low, tl.maximum(low, end))
            # The smallest of the tiles' maxima is about the `tiles`-th largest logit of the row.
            start = tl.min(tl.where(maxima > float("-inf"), maxima, best), 0)
            if stage == 1:
                tail = _tail_bound(mass, top_p, best, inverse_temperature, step.vocabulary)
                low = tl.maximum(low, key_of(tail, SHIFT) - 1)
                v_low = value_of(low, SHIFT)
                start = tl.where(v_low == float("-inf"), start, 0.5 * v_low + 0.5 * best)
            value, held = smallest_kept(
                step,
                adjustments,
                request,
                row,
                j,
                candidates,
                held,
                low,
                key_of(best, SHIFT),
                tl.where(stage == 0, top_k.to(tl.float32), top_p * mass),
                stage == 1,
                start,
                best,
                inverse_temperature,
                BLOCK,
                VECTOR,
                HELD,
                SHIFT,
            )
            if (stage == 0) & nucleus:
                mass = _kept_mass(
                    step, adjustments, request, row, j, candidates, held, value, best, inverse_temperature,
                    BLOCK, VECTOR, HELD,
                )  # fmt: skip
    return tl.maximum(value, cut)


@triton.jit
def _min_p_cut(filters, request, best, inverse_temperature):
    """The smallest logit that min-p keeps: best + T log(min_p), or -inf if min-p is off."""
    min_p = tl.load(filters.min_p + request)
    return tl.where(min_p > 0, best + tl.log(tl.where(min_p > 0, min_p, 1.0)) / inverse_temperature, float("-inf"))


@triton.jit
def _tail_bound(mass, top_p, best, inverse_temperature, vocabulary):
    """A value that top-p drops: all tokens at or below it together weigh less than the dropped share of `mass`."""
    share = (1 - top_p) * mass / vocabulary
    bound = best + (tl.log(share) - _TAIL_SLACK) / inverse_temperature
    return bound - tl.abs(best) * 1e-6


@triton.jit
def _kept_mass(
    step,
    adjustments,
    request,
    row,
    j,
    candidates,
    held,
    value,
    best,
    inverse_temperature,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    HELD: tl.constexpr,
):
    """The sum of exp((x - best) / T) over the row's logits from `value` up: float32."""
    if held >= 0:
        x = held_values(candidates, held, HELD)
        mass = tl.sum(tl.where(x >= value, exponentials(x, best, inverse_temperature), 0.0), 0)
    else:
        parts = tl.zeros([BLOCK // VECTOR], tl.float32)
        for first in range(0, step.vocabulary, BLOCK):
            x = load_vectors(step, adjustments, request, row, j, first, BLOCK, VECTOR)
            parts += tl.sum(tl.where(x >= value, exponentials(x, best, inverse_temperature), 0.0), 1)
        mass = tl.sum(parts, 0)
    return mass
