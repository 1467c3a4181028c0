"""The second launch, for requests with filters: the smallest kept logit of each row, the mass of the kept tokens and,
by the standard rule, the acceptance of the drafted token.

Programs take rows in turn, row 0 of all requests first, and skip rows after a known rejection. Thresholds are exact
(see `kernel_search`). Filtered requests are not greedy and not decided by the scan; the scan's statistics of the whole
row bound the search.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_emit import row_whole
from slipstream_kernels.spec_verify.kernel_primitives import ACCEPT, exponentials, uniform
from slipstream_kernels.spec_verify.kernel_search import held_values, key_of, smallest_kept, value_of
from slipstream_kernels.spec_verify.kernel_state import ENDS, current, ends_before
from slipstream_kernels.spec_verify.kernel_tile import (
    draft_length,
    drafted_token,
    first_row,
    inverse_temperature_of,
    is_filtered,
    load_vectors,
)

_TAIL_SLACK = tl.constexpr(1e-3)
"""Margin of the bound on the logits that top-p keeps, in units of temperature, against rounding."""


@triton.jit
def is_sampled(step, drafts, statistics, request, j, length, draft_count):
    """Whether the token of step `j` was drawn from the draft's logits, and its row has a distribution."""
    sampled = False
    if drafts.logits is not None:
        at = request.to(tl.int64) * draft_count + j
        row_sum = tl.load(statistics.draft_row_sum + at, mask=j < length, other=float("nan"))
        sampled = (tl.load(step.temperature + request) > 0) & (row_sum == row_sum)
        if drafts.onehot is not None:
            sampled = sampled & (tl.load(drafts.onehot + request) == 0)
    return sampled


@triton.jit
def draft_probability(drafts, statistics, request, j, token, sampled, draft_count):
    """q of the token drafted at step `j`, float64: 1 if it was not `sampled`. `token` may be -1."""
    q = tl.full([], 1.0, tl.float64)
    if drafts.logits is not None and sampled:
        at = request.to(tl.int64) * draft_count + j
        row = drafts.logits + request.to(tl.int64) * drafts.request_stride + tl.cast(j, tl.int64) * drafts.step_stride
        known = (token >= 0) & (token < drafts.vocabulary)
        x = tl.load(row + token, mask=known, other=float("-inf")).to(tl.float32)
        weight = exponentials(x, tl.load(statistics.draft_row_max + at), 1.0)
        q = (weight / tl.load(statistics.draft_row_sum + at)).to(tl.float64)
    return q


@triton.jit(do_not_specialize=["requests", "draft_count", "tiles"])
def threshold(
    step,
    drafts,
    adjustments,
    filters,
    statistics,
    requests,
    draft_count,
    tiles,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    HELD: tl.constexpr,
    SHIFT: tl.constexpr,
    LAZY: tl.constexpr,
    BLOCK_RULE: tl.constexpr,
):
    """Grid: one axis with one program per row of HELD values in `statistics.candidates`. TILES is a power of two not
    below `tiles`; BLOCK may differ from the scan's; SHIFT is the number of low bits that are 0 in all adjusted
    logits."""
    for number in range(tl.program_id(0), requests * (draft_count + 1), tl.num_programs(0)):
        j, request = number // requests, number % requests
        length = draft_length(step, request, draft_count)
        wanted = (j <= length) & is_filtered(step, filters, request)
        # With the block rule, an end before the last row is a broken row; later rows may have no statistics.
        if LAZY and wanted:
            wanted = not ends_before(current(statistics.state, request), j)
        if wanted:
            r = request.to(tl.int64) * (draft_count + 1) + j
            inverse_temperature = inverse_temperature_of(tl.load(step.temperature + request))
            best, whole = row_whole(step, statistics, request, j, r, inverse_temperature, draft_count)
            if whole == whole:
                value, mass = _filter_row(
                    step,
                    adjustments,
                    filters,
                    statistics,
                    request,
                    j,
                    r,
                    best,
                    whole,
                    inverse_temperature,
                    tiles,
                    TILES,
                    BLOCK,
                    VECTOR,
                    HELD,
                    SHIFT,
                )
                tl.store(statistics.threshold + r, value)
                tl.store(statistics.kept_mass + r, mass)
                if not BLOCK_RULE and j < length:
                    _judge(step, drafts, statistics, request, j, r, best, value, mass, inverse_temperature, draft_count)


@triton.jit
def _judge(step, drafts, statistics, request, j, r, best, value, mass, inverse_temperature, draft_count):
    """Publish the acceptance of the drafted token. The first rejection ends the request.

    No program of this launch depends on other writes of this program after seeing the bit, so relaxed order suffices.
    """
    length = draft_length(step, request, draft_count)
    token = drafted_token(step, request, j, length)
    x = tl.load(statistics.drafted + r, mask=token >= 0, other=float("-inf"))
    weight = tl.where(x >= value, exponentials(x, best, inverse_temperature), 0.0)
    sampled = is_sampled(step, drafts, statistics, request, j, length, draft_count)
    q = draft_probability(drafts, statistics, request, j, token, sampled, draft_count)
    u = uniform(tl.load(step.seed + request), tl.load(step.positions + request) + j, tl.full([], ACCEPT, tl.int32))
    accepted = u * q * mass.to(tl.float64) < weight.to(tl.float64)
    bit = tl.full([], 1, tl.int64) << tl.where(accepted, j, j + ENDS)
    tl.atomic_or(statistics.state + request, bit, sem="relaxed", scope="gpu")


@triton.jit
def _filter_row(
    step,
    adjustments,
    filters,
    statistics,
    request,
    j,
    r,
    best,
    whole,
    inverse_temperature,
    tiles,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    HELD: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The row's smallest kept logit and the sum of exp((x - best) / T) over the kept logits, both float32.

    `best` and `whole` are the row's largest logit and the sum over the whole row.
    """
    row = first_row(step, request) + j
    candidates = statistics.candidates + tl.program_id(0) * HELD
    top_k, top_p = tl.load(filters.top_k + request), tl.load(filters.top_p + request)
    limited, nucleus = (top_k > 0) & (top_k < step.vocabulary), top_p < 1
    cut = _min_p_cut(filters, request, best, inverse_temperature)
    # The top-k and top-p searches need not resolve values that min-p drops anyway.
    end = key_of(cut, SHIFT) - (cut > float("-inf")).to(tl.int32)

    value = tl.full([], float("-inf"), tl.float32)
    mass = whole
    held = tl.full([], -1, tl.int32)
    for stage in range(3):
        active = tl.where(stage == 0, limited, tl.where(stage == 1, nucleus, cut > value))
        if active:
            if stage < 2:
                low = key_of(value, SHIFT) - (value > float("-inf")).to(tl.int32)
                low = tl.where((stage == 0) & nucleus, low, tl.maximum(low, end))
                start = _least_of_tiles(statistics, r, best, tiles, TILES)
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
            else:
                value = cut
            mass = _kept_mass(
                step, adjustments, request, row, j, candidates, held, value, best, inverse_temperature,
                BLOCK, VECTOR, HELD,
            )  # fmt: skip
    return value, mass


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
def _least_of_tiles(statistics, r, best, tiles, TILES: tl.constexpr):
    """The smallest of the tiles' maxima, which is about the `tiles`-th largest logit of the row or slightly below.
    Tiles without a finite logit are ignored. Never above `best`."""
    number = tl.arange(0, TILES)
    largest = tl.load(statistics.tile_max + r * tiles + number, mask=number < tiles, other=float("-inf"))
    return tl.min(tl.where(largest > float("-inf"), largest, best), 0)


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
            x, _ = load_vectors(step, adjustments, request, row, j, first, BLOCK, VECTOR)
            parts += tl.sum(tl.where(x >= value, exponentials(x, best, inverse_temperature), 0.0), 1)
        mass = tl.sum(parts, 0)
    return mass
