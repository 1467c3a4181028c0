"""Search for the smallest logit of a row that a filter keeps, in the Triton language.

Top-k and top-p are the same problem: find the smallest value such that the total weight of all larger logits is below a
target. A token weighs 1 for top-k and exp((x - largest) / T) for top-p. The weight above a value falls as the value
rises and changes only at values that occur, so the answer is one of these. It is exact, and ties stay together.

The search narrows a bracket (low, high] of float32 values, represented by ordered integers (`key_of`). Each pass over
the row computes the weight above three values in the bracket. When the bracket holds at most HELD tokens, one more pass
collects them, and the search ends in registers. Two passes are typical, served from the L2 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_primitives import exponentials
from slipstream_kernels.spec_verify.kernel_tile import load_vectors


@triton.jit
def key_of(x, SHIFT: tl.constexpr):
    """Order-preserving int32 key of a float32 scalar, without its lowest SHIFT bits. These bits are 0 in all logits: 16
    for bfloat16, 13 for float16, otherwise none."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF) >> SHIFT


@triton.jit
def value_of(key, SHIFT: tl.constexpr):
    """The float32 of a key, with the dropped bits 0."""
    bits = (key << SHIFT) | tl.where(key < 0, (1 << SHIFT) - 1, 0)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _distance(low, high):
    """`high - low` of two keys as uint32, because the difference may not fit an int32."""
    return high.to(tl.uint32, bitcast=True) - low.to(tl.uint32, bitcast=True)


@triton.jit
def _between(low, high, HALVINGS: tl.constexpr):
    """The key that is 1/2 or 1/4 of the way from `low` to `high`."""
    return low + (_distance(low, high) >> HALVINGS).to(tl.int32, bitcast=True)


@triton.jit
def smallest_kept(
    step,
    adjustments,
    request,
    row,
    j,
    candidates,
    held,
    low,
    high,
    target,
    by_mass,
    start,
    largest,
    inverse_temperature,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    HELD: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The smallest value above `low` such that the weight of all larger logits is below `target`.

    Args:
        row, j: the row's place in the logits (int64), and its step.
        candidates: float32 [HELD], private to this program. It holds `held` (int32) values: all of the row's logits
            above `low`. `held` = -1: nothing has been collected.
        low, high: keys. `high` is the key of the largest logit; values at or below `low` are irrelevant.
        target, by_mass: the weight limit (float32), and whether weights are exponentials or token counts.
        start: a value near which the search starts.

    Returns:
        The value, float32; possibly the value of `low` if even the weight above `low` is below `target`. Then the new
        `held`, for the logits above the new `low`.
    """
    top = high
    weight_above_low = target * 0 + float("inf")
    weight_above = target * 0  # weight above `high`
    few = held >= 0  # whether the bracket's logits fit into `candidates`
    turn = held * 0
    while (_distance(low, high) > 1) & (not few):
        a, b, c = _pivots(low, high, turn, start, largest, inverse_temperature, SHIFT)
        v_a, v_b, v_c = value_of(a, SHIFT), value_of(b, SHIFT), value_of(c, SHIFT)
        w_a, w_b, w_c = _weigh(
            step, adjustments, request, row, j, v_a, v_b, v_c, by_mass, largest, inverse_temperature,
            BLOCK, VECTOR,
        )  # fmt: skip
        enough_a, enough_b, enough_c = w_a >= target, w_b >= target, w_c >= target
        weight_above_low = tl.where(enough_a | (turn == 0), w_a, weight_above_low)
        weight_above_low = tl.where(enough_c, w_c, tl.where(enough_b, w_b, weight_above_low))
        lower = tl.where(enough_c, c, tl.where(enough_b, b, tl.where(enough_a, a, low)))
        # In the first turn `a` is `low`. If the weight above it is already too small, the answer is `low` or, with few
        # logits above it, the smallest of them.
        hopeless = (turn == 0) & (not enough_a)
        upper = tl.where(enough_c, high, tl.where(enough_b, c, tl.where(enough_a, b, a)))
        above = tl.where(enough_b, w_c, tl.where(enough_a, w_b, w_a))
        above = tl.where(enough_c, weight_above, above)
        upper, above = tl.where(hopeless, high, upper), tl.where(hopeless, weight_above, above)
        lightest = tl.where(by_mass, exponentials(value_of(lower, SHIFT), largest, inverse_temperature), 1.0)
        few = weight_above_low - above <= 0.99 * HELD * lightest
        high = tl.where(hopeless & (not few), low, upper)
        low, weight_above = lower, above
        turn += 1
    answer = value_of(high, SHIFT)
    if _distance(low, high) > 1:
        if held < 0:
            v_low, v_high = value_of(low, SHIFT), value_of(high, SHIFT)
            held = _collect(step, adjustments, request, row, j, candidates, v_low, v_high, BLOCK, VECTOR, HELD)
        x = held_values(candidates, held, HELD)
        answer = _among(x, low, high, weight_above, target, by_mass, largest, inverse_temperature, SHIFT)
        held = tl.where(high == top, held, -1)
    return answer, held


@triton.jit
def _pivots(low, high, turn, start, largest, inverse_temperature, SHIFT: tl.constexpr):
    """Three keys, ascending, strictly inside (low, high), but `low` itself for the first in turn 0.

    A bracket without a lower end is searched downwards in growing strides. Otherwise the bracket is divided alternately
    into equal differences, which suits logits, and equal numbers of floats, which takes at most 32 halvings.
    """
    v_low, v_high = value_of(low, SHIFT), value_of(high, SHIFT)
    stride = tl.maximum(largest - v_high, 1.0 / inverse_temperature)
    open_below = v_low == float("-inf")
    v_a = tl.where(open_below, v_high - 16 * stride, 0.75 * v_low + 0.25 * v_high)
    v_b = tl.where(open_below, v_high - 4 * stride, 0.5 * v_low + 0.5 * v_high)
    v_c = tl.where(open_below, v_high - stride, 0.25 * v_low + 0.75 * v_high)
    v_b = tl.where(turn == 0, start, v_b)
    v_c = tl.where(turn == 0, 0.5 * start + 0.5 * largest, v_c)
    by_value = open_below | (turn % 2 == 0)
    a = tl.where(by_value, key_of(v_a, SHIFT), _between(low, high, 2))
    b = tl.where(by_value, key_of(v_b, SHIFT), _between(low, high, 1))
    c = tl.where(by_value, key_of(v_c, SHIFT), low + (high - _between(low, high, 2)))
    a = tl.minimum(tl.maximum(a, low + 1), high - 1)
    b = tl.minimum(tl.maximum(b, low + 1), high - 1)
    c = tl.minimum(tl.maximum(c, low + 1), high - 1)
    return tl.where(turn == 0, low, a), b, c


@triton.jit
def _weigh(
    step,
    adjustments,
    request,
    row,
    j,
    a,
    b,
    c,
    by_mass,
    largest,
    inverse_temperature,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The weights above each of three values, float32."""
    VECTORS: tl.constexpr = BLOCK // VECTOR
    if by_mass:
        w_a, w_b, w_c = (
            tl.zeros([VECTORS], tl.float32),
            tl.zeros([VECTORS], tl.float32),
            tl.zeros([VECTORS], tl.float32),
        )
        for first in range(0, step.vocabulary, BLOCK):
            x = load_vectors(step, adjustments, request, row, j, first, BLOCK, VECTOR)
            weight = exponentials(x, largest, inverse_temperature)
            w_a += tl.sum(tl.where(x > a, weight, 0.0), 1)
            w_b += tl.sum(tl.where(x > b, weight, 0.0), 1)
            w_c += tl.sum(tl.where(x > c, weight, 0.0), 1)
        over_a, over_b, over_c = tl.sum(w_a, 0), tl.sum(w_b, 0), tl.sum(w_c, 0)
    else:
        n_a, n_b, n_c = tl.zeros([VECTORS], tl.int32), tl.zeros([VECTORS], tl.int32), tl.zeros([VECTORS], tl.int32)
        for first in range(0, step.vocabulary, BLOCK):
            x = load_vectors(step, adjustments, request, row, j, first, BLOCK, VECTOR)
            n_a += tl.sum((x > a).to(tl.int32), 1)
            n_b += tl.sum((x > b).to(tl.int32), 1)
            n_c += tl.sum((x > c).to(tl.int32), 1)
        over_a, over_b, over_c = tl.sum(n_a, 0), tl.sum(n_b, 0), tl.sum(n_c, 0)
        over_a, over_b, over_c = over_a.to(tl.float32), over_b.to(tl.float32), over_c.to(tl.float32)
    return over_a, over_b, over_c


@triton.jit
def _collect(
    step,
    adjustments,
    request,
    row,
    j,
    candidates,
    low,
    high,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    HELD: tl.constexpr,
):
    """Write the row's logits in (low, high] to `candidates`, in order. Returns their number, int32."""
    tl.debug_barrier()  # All threads have read the previous candidates.
    found = (row * 0).to(tl.int32)
    for first in range(0, step.vocabulary, BLOCK):
        x = load_vectors(step, adjustments, request, row, j, first, BLOCK, VECTOR)
        wanted = (x > low) & (x <= high)
        counts = tl.sum(wanted.to(tl.int32), 1)
        count = tl.sum(counts, 0)
        if count > 0:
            before = found + tl.cumsum(counts, 0) - counts
            place = before[:, None] + tl.cumsum(wanted.to(tl.int32), 1) - 1
            tl.store(candidates + place, x, mask=wanted & (place < HELD))
            found += count
    tl.debug_barrier()  # Every thread sees the stores of the others.
    return found


@triton.jit
def held_values(candidates, held, HELD: tl.constexpr):
    """The collected logits, float32 [HELD], -inf after the last."""
    at = tl.arange(0, HELD)
    return tl.load(candidates + at, mask=at < held, other=float("-inf"), cache_modifier=".cg")


@triton.jit
def _among(x, low, high, above, target, by_mass, largest, inverse_temperature, SHIFT: tl.constexpr):
    """The smallest of `x` in (low, high] such that the weight of all larger logits is below `target`: float32. `above`
    is the weight above `high`."""
    v_high = value_of(high, SHIFT)
    inside = (x > value_of(low, SHIFT)) & (x <= v_high)
    weights = tl.where(by_mass, exponentials(x, largest, inverse_temperature), 1.0)
    weights = tl.where(inside, weights, 0.0)
    while _distance(low, high) > 1:
        middle = _between(low, high, 1)
        over = above + tl.sum(tl.where(x > value_of(middle, SHIFT), weights, 0.0), 0)
        low = tl.where(over >= target, middle, low)
        high = tl.where(over >= target, high, middle)
    # The found value. If sums in another order disagree with the earlier ones, it is the smallest candidate.
    answer = value_of(high, SHIFT)
    return tl.min(tl.where(inside & (x >= answer), x, v_high), 0)
