"""Completion of a request: draws its last token and writes its outputs.

The emitting program has observed, by an acquiring atomic operation on the request's state, that every row up to the
terminal one is complete. Other programs wrote the statistics, so they are read with `.cg`, past the L1 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_primitives import RESIDUAL, TARGET, exponentials, pick, uniform
from slipstream_kernels.spec_verify.kernel_tile import (
    drafted_token,
    inverse_temperature_of,
    load_adjusted,
    load_vectors,
)


@triton.jit
def last_uniform(step, request, terminal, length):
    """The random number for the last token: purpose RESIDUAL after a rejection, TARGET in the last row."""
    purpose = tl.where(terminal < length, RESIDUAL, TARGET).to(tl.int32)
    return uniform(tl.load(step.seed + request), tl.load(step.positions + request) + terminal, purpose)


@triton.jit
def emit(outputs, step, statistics, request, terminal, token, token_logit, broken, draft_count, STEPS: tl.constexpr):
    """Write all outputs of `request`: the drafts before row `terminal`, then `token` with its adjusted logit
    `token_logit`; only padding if `broken`. STEPS is a power of two above K."""
    steps = tl.arange(0, STEPS)
    width = draft_count + 1
    inside, before = steps < width, steps < terminal
    ends_here = (steps == terminal) & (not broken)
    at = request.to(tl.int64) * width + steps
    kept = before & (not broken)

    drafts = step.draft_token_ids + request.to(tl.int64) * step.draft_stride
    earlier = tl.load(drafts + steps, mask=kept, other=-1)
    tl.store(outputs.token_ids + at, tl.where(ends_here, token.to(tl.int64), earlier), mask=inside)
    tl.store(outputs.accepted + request, tl.where(broken, -1, terminal).to(tl.int64))
    tl.store(outputs.lengths + request, tl.where(broken, 0, terminal + 1).to(tl.int64))

    logprob = token_logprob(step, statistics, request, terminal, token_logit, draft_count)
    logprobs = tl.load(statistics.row_logprob + at, mask=kept, other=float("nan"), cache_modifier=".cg")
    tl.store(outputs.logprobs + at, tl.where(ends_here, logprob, logprobs), mask=inside)
    if outputs.margins is not None:
        mask = kept | ends_here
        margins = tl.load(statistics.row_margin + at, mask=mask, other=float("nan"), cache_modifier=".cg")
        tl.store(outputs.margins + at, margins, mask=inside)


@triton.jit
def token_logprob(step, statistics, request, j, logit, draft_count):
    """The log-probability of a token with adjusted logit `logit` in row `j` of `request`, before filters."""
    inverse_temperature = inverse_temperature_of(tl.load(step.temperature + request))
    r = request.to(tl.int64) * (draft_count + 1) + j
    best, whole = row_whole(step, statistics, request, j, r, inverse_temperature, draft_count)
    return (logit - best) * inverse_temperature - tl.log(whole)


@triton.jit
def row_whole(step, statistics, request, j, r, inverse_temperature, draft_count):
    """The largest adjusted logit of a complete row and the sum of exp((x - largest) / T), drafted token included."""
    length = tl.load(step.draft_lengths + request)
    row_max = tl.load(statistics.row_max + r, cache_modifier=".cg")
    row_sum = tl.load(statistics.row_sum + r, cache_modifier=".cg")
    has_draft = drafted_token(step, request, j, length) >= 0
    drafted = tl.load(statistics.drafted + r, mask=has_draft, other=float("-inf"), cache_modifier=".cg")
    best = tl.maximum(row_max, drafted)
    others = row_sum * exponentials(row_max, best, inverse_temperature)
    return best, others + exponentials(drafted, best, inverse_temperature)


@triton.jit
def emit_simple(
    outputs,
    step,
    adjustments,
    statistics,
    request,
    terminal,
    first,
    length,
    draft_count,
    tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Complete a request that needs to re-read only one tile of its row: greedy, or one-hot drafts without filters.

    The last token is drawn from the row's tokens except the drafted one, by inverse CDF: first over tiles, then within
    the tile. For a greedy request, all weight is on the largest logit. `first` is the request's first row in the
    logits; TILES is a power of two not below `tiles`.
    """
    r = request.to(tl.int64) * (draft_count + 1) + terminal
    row_max = tl.load(statistics.row_max + r, cache_modifier=".cg")
    row_sum = tl.load(statistics.row_sum + r, cache_modifier=".cg")
    broken = row_sum != row_sum
    token = tl.full([], -1, tl.int32)
    token_logit = tl.full([], 0.0, tl.float32)
    if not broken:
        temperature = tl.load(step.temperature + request)
        greedy = temperature <= 0
        inverse_temperature = inverse_temperature_of(temperature)
        drafted = drafted_token(step, request, terminal, length)
        number = tl.arange(0, TILES)
        at = r * tiles + number
        largest = tl.load(statistics.tile_max + at, mask=number < tiles, other=float("-inf"), cache_modifier=".cg")
        sums = tl.load(statistics.tile_sum + at, mask=number < tiles, other=0.0, cache_modifier=".cg")
        scales = exponentials(largest, row_max, inverse_temperature).to(tl.float64)
        weights = tl.where(greedy, (largest == row_max).to(tl.float64), sums.to(tl.float64) * scales)
        u = tl.where(greedy, 0.0, last_uniform(step, request, terminal, length))
        threshold = u * tl.sum(weights, 0)
        tile = pick(weights, number, threshold)
        here = number == tile
        tile_max = tl.max(tl.where(here, largest, float("-inf")), 0)
        rest = threshold - tl.sum(tl.where(number < tile, weights, 0.0), 0)
        rest = tl.where(greedy, 0.0, rest / tl.sum(tl.where(here, scales, 0.0), 0))
        token, token_logit = _draw_in_tile(
            step,
            adjustments,
            request,
            first + terminal,
            terminal,
            tile * BLOCK,
            drafted,
            greedy,
            tile_max,
            inverse_temperature,
            rest,
            BLOCK,
            VECTOR,
        )
    emit(outputs, step, statistics, request, terminal, token, token_logit, broken, draft_count, STEPS)


@triton.jit
def _draw_in_tile(
    step,
    adjustments,
    request,
    row,
    j,
    start,
    drafted,
    greedy,
    tile_max,
    inverse_temperature,
    threshold,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The first token at which the running sum of a tile's weights exceeds `threshold`, and its adjusted logit.

    The search goes over the vectors of the tile, then re-reads one vector. A float64 prefix sum over the whole tile
    would need so many registers that the scan would have too few threads.
    """
    x, ids = load_vectors(step, adjustments, request, row, j, start, BLOCK, VECTOR)
    sums = tl.sum(_weights(x, ids, drafted, greedy, tile_max, inverse_temperature), 1).to(tl.float64)
    number = tl.arange(0, BLOCK // VECTOR)
    chosen = pick(sums, number, threshold)
    threshold -= tl.sum(tl.where(number < chosen, sums, 0.0), 0)
    x, ids = load_adjusted(step, adjustments, request, row, j, start + chosen * VECTOR, VECTOR)
    token = pick(_weights(x, ids, drafted, greedy, tile_max, inverse_temperature), ids, threshold)
    return token, tl.sum(tl.where(ids == token, x, 0.0), 0)


@triton.jit
def _weights(x, ids, drafted, greedy, best, inverse_temperature):
    """Weights of tokens: 0 for the drafted one; greedy: 1 at the best logit; else exp((x - best) / T)."""
    x = tl.where(ids == drafted, float("-inf"), x)
    return tl.where(greedy, (x == best).to(tl.float32), exponentials(x, best, inverse_temperature))
