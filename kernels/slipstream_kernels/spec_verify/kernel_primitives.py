"""What every verification kernel does with a tile of logits, in the Triton language: adjust, sum up, draw.

A tile is BLOCK neighbouring tokens of one row, float32 [BLOCK], with `ids` int32 [BLOCK] saying which. Everything here
reads its inputs and writes nothing. The arithmetic of `adjusted` follows `slipstream_kernels.adjustments` operation by
operation, so that a greedy choice cannot differ: divisions are rounded to nearest, and kernels are to be compiled
with `enable_fp_fusion=False`, as PyTorch rounds each product and each sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.counter_random import Purpose

ACCEPT = tl.constexpr(int(Purpose.ACCEPT))
RESIDUAL = tl.constexpr(int(Purpose.RESIDUAL))
TARGET = tl.constexpr(int(Purpose.TARGET))
PURPOSES = tl.constexpr(len(Purpose))
"""What random numbers are for, as the compiler takes it, and how many purposes there are."""

NO_TOKEN = tl.constexpr(2**31 - 1)
"""Above every token id."""

_LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32."""

_LOG2_E = tl.constexpr(1.4426950408889634)

_TWO_TO_MINUS_52 = tl.constexpr(2.0**-52)


@triton.jit
def uniform(seed, position, purpose):
    """The number of (seed, position, purpose): float64 in [0, 1), bit by bit that of `counter_random.uniform`.

    `seed` and `position` int64 scalars, `purpose` an int32 scalar.
    """
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    word0, word1, _, _ = tl.philox(seed, low, high, purpose.to(tl.uint32), (low * 0).to(tl.uint32))
    bits = (word0.to(tl.int64) << 20) | (word1.to(tl.int64) >> 12)
    return bits.to(tl.float64) * _TWO_TO_MINUS_52


@triton.jit
def lower_bound(values, start, end, key):
    """The first index in [start, end) at which the ascending int32 `values` are not below `key`; `end` if none is."""
    while start < end:
        middle = (start + end) // 2
        below = tl.load(values + middle) < key
        start = tl.where(below, middle + 1, start)
        end = tl.where(below, end, middle)
    return start


@triton.jit
def adjusted(
    logits,
    ids,
    first_id,
    end_id,
    vocabulary,
    request,
    row,
    step,
    draft_token_ids,
    draft_stride,
    bias_offsets,
    bias_ids,
    bias_values,
    repetition,
    frequency,
    presence,
    seen_offsets,
    seen_ids,
    seen_counts,
    bitmask,
    bitmask_stride,
    HAS_BIAS: tl.constexpr,
    HAS_PENALTIES: tl.constexpr,
    HAS_BITMASK: tl.constexpr,
):
    """`logits` float32 [BLOCK] after logit bias, penalties and grammar bitmask, in this order; -inf where `ids` is
    not below `vocabulary`.

    Every id lies in [first_id, end_id): so a tile looks only at the sparse entries that concern it. `row` is the
    row of the logits (for the bitmask), `step` its number within the request: the drafts before it, in
    `draft_token_ids` [B, K] with rows `draft_stride` apart, count as output.
    """
    x = logits
    if HAS_BIAS:
        end = tl.load(bias_offsets + request + 1)
        entry = lower_bound(bias_ids, tl.load(bias_offsets + request), end, first_id)
        end = lower_bound(bias_ids, entry, end, end_id)
        for at in range(entry, end):
            x = tl.where(ids == tl.load(bias_ids + at), x + tl.load(bias_values + at), x)
    if HAS_PENALTIES:
        drafts = draft_token_ids + request.to(tl.int64) * draft_stride
        r, f, p = tl.load(repetition + request), tl.load(frequency + request), tl.load(presence + request)
        seen_start, seen_end = tl.load(seen_offsets + request), tl.load(seen_offsets + request + 1)
        entry = lower_bound(seen_ids, seen_start, seen_end, first_id)
        end = lower_bound(seen_ids, entry, seen_end, end_id)
        # Entries only leave a mark, 1 more than the count: the division is for the tile once, not once per entry.
        marks = ids * 0
        for at in range(entry, end):
            token = tl.load(seen_ids + at)
            marks = tl.where(ids == token, tl.load(seen_counts + at) + _drafted(drafts, step, token) + 1, marks)
        for earlier in range(step):
            token = tl.load(drafts + earlier)
            if (token >= first_id) & (token < end_id) & (_drafted(drafts, earlier, token) == 0):
                at = lower_bound(seen_ids, entry, end, token)
                if _is_new(seen_ids, at, end, token):
                    marks = tl.where(ids == token, _drafted(drafts, step, token) + 1, marks)
        x = tl.where(marks > 0, _penalised(x, marks - 1, r, f, p), x)
    if HAS_BITMASK:
        words = bitmask + row.to(tl.int64) * bitmask_stride
        word = tl.load(words + ids // 32, mask=ids < vocabulary, other=0)
        x = tl.where(((word >> (ids % 32)) & 1) != 0, x, float("-inf"))
    return tl.where(ids < vocabulary, x, float("-inf"))


@triton.jit
def _drafted(drafts, steps, token):
    """How many of the first `steps` drafted tokens are `token`: int32."""
    count = 0
    for step in range(steps):
        count += (tl.load(drafts + step) == token).to(tl.int32)
    return count


@triton.jit
def _is_new(seen_ids, at, end, token):
    """Whether `token` is not among the seen ids, `at` being its lower bound below `end`."""
    new = True
    if at < end:
        new = tl.load(seen_ids + at) != token
    return new


@triton.jit
def _penalised(x, count, repetition, frequency, presence):
    """Logits of a token that was seen, `count` times of these in the output."""
    x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    x = x - frequency * count.to(tl.float32)
    return x - tl.where(count > 0, presence, 0.0)


@triton.jit
def exponentials(x, largest, inverse_temperature):
    """exp((x - largest) / T) of a tile, float32 [BLOCK]: 0 where x is -inf, whatever `largest` is, NaN where x is NaN
    or +inf. The difference comes first, so that no temperature can overflow it."""
    base = tl.maximum(largest, _LOWEST)  # -inf less itself would be NaN
    # exp2 is one instruction of the GPU, which takes results below 2^-126 as 0.
    return tl.exp2((x - base) * (inverse_temperature * _LOG2_E))


@triton.jit
def pick(weights, ids, threshold):
    """Inverse CDF: the first of `ids` at which the running sum of `weights` is above `threshold` (float64).

    `weights` [BLOCK], any float type, not negative; `ids` int32 [BLOCK] ascending. Where rounding has left the sum
    below the threshold it is the last id with a weight: never one without, unless none has any (-1).
    """
    running = tl.cumsum(weights.to(tl.float64), 0)
    chosen = tl.min(tl.where((running > threshold) & (weights > 0), ids, NO_TOKEN), 0)
    last = tl.max(tl.where(weights > 0, ids, -1), 0)
    return tl.where(chosen == NO_TOKEN, last, chosen)
