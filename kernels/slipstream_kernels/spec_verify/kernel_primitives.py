"""Operations on a tile of logits that all verification kernels share: adjustments and exponentials.

A tile is BLOCK consecutive tokens of one row, float32 [BLOCK], with their `ids` int32 [BLOCK]. These functions write no
memory. The arithmetic of `adjusted` follows `slipstream_kernels.adjustments` operation by operation, so that greedy
choices agree: divisions round to nearest, and kernels must be compiled with `enable_fp_fusion=False`, because PyTorch
rounds each product and each sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_TOKEN = tl.constexpr(2**31 - 1)
"""Above every token id."""

_LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32."""

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def lower_bound(values, start, end, key):
    """The first index in [start, end) at which the ascending int32 `values` are not below `key`, else `end`."""
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

    Every id lies in [first_id, end_id), so only sparse entries in that range are read. `row` is the row of the logits
    (for the bitmask) and `step` its number within the request. The drafts before it, in `draft_token_ids` [B, K] with
    rows `draft_stride` apart, count as output.
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
        # Entries only set a mark, the count plus 1, so that the tile is divided once instead of once per entry.
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
    """Number of occurrences of `token` among the first `steps` drafted tokens: int32."""
    count = 0
    for step in range(steps):
        count += (tl.load(drafts + step) == token).to(tl.int32)
    return count


@triton.jit
def _is_new(seen_ids, at, end, token):
    """Whether `token` is not among the seen ids; `at` is its lower bound below `end`."""
    new = True
    if at < end:
        new = tl.load(seen_ids + at) != token
    return new


@triton.jit
def _penalised(x, count, repetition, frequency, presence):
    """Penalised logits of seen tokens that occur `count` times in the output."""
    x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    x = x - frequency * count.to(tl.float32)
    return x - tl.where(count > 0, presence, 0.0)


@triton.jit
def exponentials(x, largest, inverse_temperature):
    """exp((x - largest) / T) of a tile, float32 [BLOCK]: 0 where x is -inf, for any `largest`, and NaN where x is NaN
    or +inf. The difference is computed first, so that no temperature can overflow it."""
    base = tl.maximum(largest, _LOWEST)  # -inf minus itself would be NaN
    # exp2 is a single GPU instruction, which flushes results below 2^-126 to 0.
    return tl.exp2((x - base) * (inverse_temperature * _LOG2_E))
