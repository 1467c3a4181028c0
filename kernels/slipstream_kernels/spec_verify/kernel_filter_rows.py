"""The second launch, for requests with filters: finds the smallest kept logit of each row, then completes the row.

Programs take rows in turn, row 0 of all requests first, and skip rows after a known end. The scan's statistics of the
whole row bound the search. A further pass over the row gives the weight of each tile's kept tokens for the draw.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_draw import TILE
from slipstream_kernels.spec_verify.kernel_primitives import exponentials
from slipstream_kernels.spec_verify.kernel_row import (
    combine_tiles,
    complete_row,
    count_row,
    current_end,
    ends_before,
)
from slipstream_kernels.spec_verify.kernel_threshold import threshold
from slipstream_kernels.spec_verify.kernel_tile import (
    draft_length,
    first_row,
    inverse_temperature_of,
    is_filtered,
    load_vectors,
)


@triton.jit(do_not_specialize=["requests", "draft_count", "tiles"])
def filter_rows(
    step,
    adjustments,
    filters,
    statistics,
    outputs,
    requests,
    draft_count,
    tiles,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    STEPS: tl.constexpr,
    LAZY: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr,
    HELD: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Grid: one axis with one program per row of HELD values in `statistics.candidates`. The search reads tiles of
    SEARCH_BLOCK tokens; SHIFT is the number of low bits that are 0 in all adjusted logits. Else as `scan`."""
    for number in range(tl.program_id(0), requests * (draft_count + 1), tl.num_programs(0)):
        j, request = number // requests, number % requests
        length = draft_length(step, request, draft_count)
        if (j <= length) & is_filtered(step, filters, request):
            end = tl.full([], 0, tl.int32)
            if LAZY:
                end = current_end(statistics, request)
            if not ends_before(end, j):
                _complete(
                    step, adjustments, filters, statistics, outputs, request, j, length, draft_count, tiles,
                    VECTOR, TILES, SEARCH_BLOCK, HELD, SHIFT,
                )  # fmt: skip
            count_row(statistics, outputs, request, length, draft_count, STEPS)


@triton.jit
def _complete(
    step,
    adjustments,
    filters,
    statistics,
    outputs,
    request,
    j,
    length,
    draft_count,
    tiles,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr,
    HELD: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Find what the filters keep in row `j`, and complete the row."""
    r = request.to(tl.int64) * (draft_count + 1) + j
    row = first_row(step, request) + j
    inverse_temperature = inverse_temperature_of(tl.load(step.temperature + request))
    best, whole, maxima, weights = combine_tiles(statistics, r, tiles, inverse_temperature, TILES)
    least = tl.full([], float("-inf"), tl.float32)
    if whole > 0:
        least = threshold(
            step, adjustments, filters, statistics, request, j, row, best, whole, maxima, inverse_temperature,
            SEARCH_BLOCK, VECTOR, HELD, SHIFT,
        )  # fmt: skip
        weights = weigh_tiles(
            step, adjustments, statistics, request, j, r, row, best, least, inverse_temperature, tiles, VECTOR, TILES
        )
    complete_row(
        step, adjustments, statistics, outputs, request, j, r, row, length, best, whole, maxima, weights, least,
        inverse_temperature, VECTOR, TILES,
    )  # fmt: skip


@triton.jit
def weigh_tiles(
    step,
    adjustments,
    statistics,
    request,
    j,
    r,
    row,
    best,
    least,
    inverse_temperature,
    tiles,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
):
    """The sum of exp((x - best) / T) over the kept tokens of each tile: float32 [TILES]. Tiles without one are not
    read."""
    tl.debug_barrier()  # All threads have read the sums that are replaced.
    for tile in range(tiles):
        weight = tl.full([], 0.0, tl.float32)
        if tl.load(statistics.tile_max + r * tiles + tile) >= least:
            x = load_vectors(step, adjustments, request, row, j, tile * TILE, TILE, VECTOR)
            kept = tl.where(x >= least, exponentials(x, best, inverse_temperature), 0.0)
            weight = tl.sum(tl.sum(kept, 1), 0)
        tl.store(statistics.tile_sum + r * tiles + tile, weight)
    tl.debug_barrier()  # Every thread sees the stores of the others.
    number = tl.arange(0, TILES)
    return tl.load(statistics.tile_sum + r * tiles + number, mask=number < tiles, other=0.0, cache_modifier=".cg")
