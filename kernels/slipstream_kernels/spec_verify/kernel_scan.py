"""The first launch, and the only one for batches without filters: reads each row of logits at most once.

A program handles one split of one row, that is, some of its tiles. It writes the maximum and the sum of each tile. The
last program of a row then completes the row (see `kernel_row`), unless the request has filters: those take the second
launch (see `kernel_filter_rows`), which needs the statistics of all rows.

Programs are numbered position-major, row 0 of all requests first. A GPU starts them roughly in this order, so row j is
often decided before row j + 1 starts. The order affects only the amount of data read: a program that finds an end
before its row stops reading and counts itself as skipping, so its row is never completed.
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
from slipstream_kernels.spec_verify.kernel_tile import (
    adjust,
    draft_length,
    first_row,
    inverse_temperature_of,
    is_filtered,
    vector_ids,
)

_SKIPPED = tl.constexpr(1 << 16)
"""Added to a row's counter by a skipping program, in addition to 1. Rows have fewer programs than this."""


# These sizes change from call to call. Without this, the compiler would specialise on 1 and on multiples of 16.
@triton.jit(do_not_specialize=["requests", "draft_count", "splits", "tiles"])
def scan(
    step,
    adjustments,
    filters,
    statistics,
    outputs,
    requests,
    draft_count,
    splits,
    tiles,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    STEPS: tl.constexpr,
    LAZY: tl.constexpr,
):
    """Grid: one axis with one program per (row, request, split). The counters in `statistics` are 0 before the launch.
    TILES and STEPS are powers of two not below `tiles` and K + 1."""
    pid = tl.program_id(0)
    j = pid // (requests * splits)
    request = (pid // splits) % requests
    split = pid % splits
    # Issue all loads that the first tile depends on before using the first result.
    length = draft_length(step, request, draft_count)
    inverse_temperature = inverse_temperature_of(tl.load(step.temperature + request))
    end = tl.full([], 0, tl.int32)
    if LAZY:
        end = current_end(statistics, request)
    row = first_row(step, request) + j
    if j > length:
        return
    r = request.to(tl.int64) * (draft_count + 1) + j
    skipped = _scan_tiles(
        step,
        adjustments,
        statistics,
        request,
        j,
        r,
        row,
        inverse_temperature,
        end,
        split,
        splits,
        tiles,
        VECTOR,
        LAZY,
    )
    tl.debug_barrier()
    done = tl.atomic_add(statistics.rows_done + r, tl.where(skipped, 1 + _SKIPPED, 1), sem="acq_rel", scope="gpu")
    if (done % _SKIPPED) == splits - 1:  # noqa: SIM102 - the second condition may be known to the compiler
        if not is_filtered(step, filters, request):
            if (done < _SKIPPED) & (not skipped):
                best, whole, maxima, weights = combine_tiles(statistics, r, tiles, inverse_temperature, TILES)
                complete_row(
                    step,
                    adjustments,
                    statistics,
                    outputs,
                    request,
                    j,
                    r,
                    row,
                    length,
                    best,
                    whole,
                    maxima,
                    weights,
                    float("-inf"),
                    inverse_temperature,
                    VECTOR,
                    TILES,
                )
            count_row(statistics, outputs, request, length, draft_count, STEPS)


@triton.jit
def _scan_tiles(
    step,
    adjustments,
    statistics,
    request,
    j,
    r,
    row,
    inverse_temperature,
    end,
    split,
    splits,
    tiles,
    VECTOR: tl.constexpr,
    LAZY: tl.constexpr,
):
    """Write the statistics of this program's tiles of a row. Returns whether any tile was skipped.

    `end` is an earlier value of the request's end. The program reads it again while a tile is loading, for the next
    tile; both loads take about equally long.
    """
    each = tl.cdiv(tiles, splits)
    last = tl.minimum(split * each + each, tiles)
    skipped = ends_before(end, j)
    for tile in range(split * each, last):
        if not skipped:
            first = tile * TILE
            raw = _load_raw(step.logits + row * step.row_stride, first, step.vocabulary, VECTOR)
            if LAZY:  # noqa: SIM102 - known to the compiler
                if tile + 1 < last:
                    end = current_end(statistics, request)
            ids = vector_ids(first, TILE, VECTOR)
            x = adjust(raw.to(tl.float32), ids, first, step, adjustments, request, row, j, TILE)
            largest, total = _sum_up(x, inverse_temperature)
            tl.store(statistics.tile_max + r * tiles + tile, largest)
            tl.store(statistics.tile_sum + r * tiles + tile, total)
        if LAZY:
            skipped = skipped | (ends_before(end, j) & (tile + 1 < last))
    return skipped


@triton.jit
def _load_raw(row, first, vocabulary, VECTOR: tl.constexpr):
    """A tile of unadjusted logits, -inf past the vocabulary."""
    ids = vector_ids(first, TILE, VECTOR)
    if first + TILE <= vocabulary:  # all tiles but the last need no mask
        raw = tl.load(row + ids)
    else:
        raw = tl.load(row + ids, mask=ids < vocabulary, other=float("-inf"))
    return raw


@triton.jit
def _sum_up(x, inverse_temperature):
    """Maximum of a tile of vectors, and the sum of exp((x - maximum) / T).

    Each vector is reduced with its own maximum first, so that its registers are free before the next one.
    """
    maxima = tl.max(x, 1)
    sums = tl.sum(exponentials(x, maxima[:, None], inverse_temperature), 1)
    largest = tl.max(maxima, 0)
    return largest, tl.sum(sums * exponentials(maxima, largest, inverse_temperature), 0)
