"""Completion of a row from the statistics of its tiles: its normaliser, and the acceptance of its drafted token."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_primitives import ACCEPT, NO_TOKEN, exponentials, uniform
from slipstream_kernels.spec_verify.kernel_tile import load_vectors


@triton.jit
def second_best(values):
    """The second largest value of a block: the largest one if it occurs twice, -inf if there is no second value."""
    best = tl.max(values, 0)
    rest = tl.max(tl.where(values < best, values, float("-inf")), 0)
    return tl.where(tl.sum((values == best).to(tl.int32), 0) > 1, best, rest)


@triton.jit
def total_of_tiles(maxima, sums, first_at, tiles, inverse_temperature, TILES: tl.constexpr):
    """Maximum and sum of exp((x - maximum) / T) over a row, from its tiles' values at `first_at`, and the tiles' maxima
    [TILES]. The sum is NaN if any tile's sum is."""
    number = tl.arange(0, TILES)
    largest = tl.load(maxima + first_at + number, mask=number < tiles, other=float("-inf"), cache_modifier=".cg")
    parts = tl.load(sums + first_at + number, mask=number < tiles, other=0.0, cache_modifier=".cg")
    best = tl.max(largest, 0)
    return best, tl.sum(parts * exponentials(largest, best, inverse_temperature), 0), largest


@triton.jit
def finish_row(
    step,
    drafts,
    adjustments,
    statistics,
    request,
    j,
    r,
    row,
    drafted,
    sampled,
    inverse_temperature,
    draft_count,
    tiles,
    draft_tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    DRAFT_TILES: tl.constexpr,
):
    """Combine the tiles of a complete row, write the row's statistics, and judge its drafted token.

    `drafted` is that token, -1 for none; `sampled`: it was drawn from the draft's logits.
    Returns whether the row has no distribution, and whether the standard rule without filters accepts the token.
    """
    row_max, others, largest = total_of_tiles(
        statistics.tile_max, statistics.tile_sum, r * tiles, tiles, inverse_temperature, TILES
    )
    z = tl.load(statistics.drafted + r, mask=drafted >= 0, other=float("-inf"), cache_modifier=".cg")
    best = tl.maximum(row_max, z)
    weight = exponentials(z, best, inverse_temperature)
    whole = others * exponentials(row_max, best, inverse_temperature) + weight
    broken = not (whole > 0)  # 0: nothing above -inf. NaN: a NaN, or +inf less itself
    tl.store(statistics.row_max + r, row_max)
    tl.store(statistics.row_sum + r, tl.where(broken, float("nan"), others))
    tl.store(statistics.row_logprob + r, (z - best) * inverse_temperature - tl.log(whole))
    if statistics.row_margin is not None:
        _store_margin(statistics, r, largest, row_max, best, z, tiles, TILES)

    q = _draft_probability(
        drafts, statistics, request, j, drafted, sampled, inverse_temperature, draft_count, draft_tiles, DRAFT_TILES
    )
    accepted = False
    if drafted >= 0:
        if tl.load(step.temperature + request) > 0:
            purpose = tl.full([], ACCEPT, tl.int32)
            u = uniform(tl.load(step.seed + request), tl.load(step.positions + request) + j, purpose)
            accepted = u * q.to(tl.float64) * whole.to(tl.float64) < weight.to(tl.float64)
        else:
            accepted = z > row_max
            if z == row_max:  # rare: the lowest id wins
                accepted = drafted < _first_best(
                    step, adjustments, request, row, j, drafted, largest, row_max, BLOCK, VECTOR, TILES
                )
    return broken, accepted & (not broken)


@triton.jit
def _store_margin(statistics, r, largest, row_max, best, z, tiles, TILES: tl.constexpr):
    """Write the row's largest minus second largest logit, drafted token included."""
    number = tl.arange(0, TILES)
    seconds = tl.load(
        statistics.tile_second + r * tiles + number, mask=number < tiles, other=float("-inf"), cache_modifier=".cg"
    )
    second = tl.maximum(second_best(largest), tl.max(seconds, 0))
    tl.store(statistics.row_margin + r, best - tl.maximum(tl.minimum(row_max, z), second))


@triton.jit
def _draft_probability(
    drafts,
    statistics,
    request,
    j,
    drafted,
    sampled,
    inverse_temperature,
    draft_count,
    draft_tiles,
    DRAFT_TILES: tl.constexpr,
):
    """q of the drafted token: 1 if it was not sampled or its row of the draft's logits has no distribution."""
    q = tl.full([], 1.0, tl.float32)
    if drafts.logits is not None:  # noqa: SIM102 - known to the compiler
        if sampled:
            at = request.to(tl.int64) * draft_count + j
            best, whole, _ = total_of_tiles(
                statistics.draft_max, statistics.draft_sum, at * draft_tiles, draft_tiles, 1.0, DRAFT_TILES
            )
            tl.store(statistics.draft_row_max + at, best)
            tl.store(statistics.draft_row_sum + at, tl.where(whole > 0, whole, float("nan")))
            if whole > 0:
                row = drafts.logits + request.to(tl.int64) * drafts.request_stride + j.to(tl.int64) * drafts.step_stride
                known = (drafted >= 0) & (drafted < drafts.vocabulary)
                z = tl.load(row + drafted, mask=known, other=float("-inf")).to(tl.float32)
                q = exponentials(z, best, 1.0) / whole
    return q


@triton.jit
def _first_best(
    step,
    adjustments,
    request,
    row,
    j,
    drafted,
    largest,
    row_max,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
):
    """The lowest token id of the row, except the drafted one, whose logit is `row_max`."""
    number = tl.arange(0, TILES)
    tile = tl.min(tl.where(largest == row_max, number, TILES - 1), 0)
    x, ids = load_vectors(step, adjustments, request, row, j, tile * BLOCK, BLOCK, VECTOR)
    return tl.min(tl.min(tl.where((x == row_max) & (ids != drafted), ids, NO_TOKEN), 1), 0)
