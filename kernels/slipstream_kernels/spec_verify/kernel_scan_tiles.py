"""The single read of the logits: loads a program's tiles of a row and writes the statistics of each."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_finish_row import second_best
from slipstream_kernels.spec_verify.kernel_primitives import exponentials
from slipstream_kernels.spec_verify.kernel_state import current, ends_before
from slipstream_kernels.spec_verify.kernel_tile import adjust, vector_ids


@triton.jit
def scan_target(
    step,
    adjustments,
    statistics,
    request,
    j,
    r,
    row,
    drafted,
    inverse_temperature,
    state,
    split,
    splits,
    tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    LAZY: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Write the statistics of this program's tiles of a row. Returns whether any tile was skipped.

    `state` is an earlier value of the request's state. The program reads it again while a tile is loading, for the next
    tile; both loads take about equally long. With AHEAD the next tile is loading too.
    """
    each = tl.cdiv(tiles, splits)
    start, end = split * each, tl.minimum(split * each + each, tiles)
    at = step.logits + row * step.row_stride
    skipped = ends_before(state, j)
    raw = tl.zeros([BLOCK // VECTOR, VECTOR], step.logits.dtype.element_ty)
    if AHEAD:  # noqa: SIM102 - known to the compiler
        if (start < end) & (not skipped):
            raw = _load_raw(at, start * BLOCK, step.vocabulary, BLOCK, VECTOR)
    for tile in range(start, end):
        if not skipped:
            following = raw
            if AHEAD:
                if tile + 1 < end:
                    following = _load_raw(at, (tile + 1) * BLOCK, step.vocabulary, BLOCK, VECTOR)
            else:
                raw = _load_raw(at, tile * BLOCK, step.vocabulary, BLOCK, VECTOR)
            if LAZY:  # noqa: SIM102 - known to the compiler
                if tile + 1 < end:
                    state = current(statistics.state, request)
            _scan_tile(
                raw,
                step,
                adjustments,
                statistics,
                request,
                j,
                r,
                row,
                drafted,
                inverse_temperature,
                tile,
                tiles,
                BLOCK,
                VECTOR,
            )
            raw = following
        if LAZY:
            skipped = skipped | (ends_before(state, j) & (tile + 1 < end))
    return skipped


@triton.jit
def _load_raw(row, first, vocabulary, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """A tile of unadjusted logits, -inf past the vocabulary."""
    ids = vector_ids(first, BLOCK, VECTOR)
    if first + BLOCK <= vocabulary:  # all tiles but the last need no mask
        raw = tl.load(row + ids)
    else:
        raw = tl.load(row + ids, mask=ids < vocabulary, other=float("-inf"))
    return raw


@triton.jit
def _scan_tile(
    raw,
    step,
    adjustments,
    statistics,
    request,
    j,
    r,
    row,
    drafted,
    inverse_temperature,
    tile,
    tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Write the statistics of the tile `raw`, without its token `drafted`, and that token's logit."""
    first = tile * BLOCK
    ids = vector_ids(first, BLOCK, VECTOR)
    x = adjust(raw.to(tl.float32), ids, first, step, adjustments, request, row, j, BLOCK)
    # Only `raw` may live across a branch: the whole tile in float32 would take twice the registers.
    if (drafted >= first) & (drafted < first + BLOCK):
        # Located by vector and index within it: ids would stay in registers for all tiles of the program.
        vector, place = (drafted - first) // VECTOR, (drafted - first) % VECTOR
        here = (tl.arange(0, BLOCK // VECTOR) == vector)[:, None] & (tl.arange(0, VECTOR) == place)[None, :]
        tl.store(statistics.drafted + r, tl.sum(tl.sum(tl.where(here, x, 0.0), 1), 0))
        x = tl.where(here, float("-inf"), x)
        largest, total, second = sum_up(x, inverse_temperature, statistics.tile_second is not None)
    else:
        largest, total, second = sum_up(x, inverse_temperature, statistics.tile_second is not None)
    tl.store(statistics.tile_max + r * tiles + tile, largest)
    tl.store(statistics.tile_sum + r * tiles + tile, total)
    if statistics.tile_second is not None:
        tl.store(statistics.tile_second + r * tiles + tile, second)


@triton.jit
def sum_up(x, inverse_temperature, MARGINS: tl.constexpr):
    """Maximum of a tile of vectors, sum of exp((x - maximum) / T) and, with MARGINS, the second largest value.

    Each vector is reduced with its own maximum first, so that its registers are free before the next one.
    """
    maxima = tl.max(x, 1)
    sums = tl.sum(exponentials(x, maxima[:, None], inverse_temperature), 1)
    largest = tl.max(maxima, 0)
    second = largest
    if MARGINS:
        second = second_best(tl.ravel(x))
    return largest, tl.sum(sums * exponentials(maxima, largest, inverse_temperature), 0), second


@triton.jit
def scan_draft(
    drafts,
    statistics,
    request,
    j,
    split,
    splits,
    draft_count,
    draft_tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Write the statistics of this program's tiles of a row of the draft's logits."""
    row = drafts.logits + request.to(tl.int64) * drafts.request_stride + j.to(tl.int64) * drafts.step_stride
    out = (request.to(tl.int64) * draft_count + j) * draft_tiles
    each = tl.cdiv(draft_tiles, splits)
    offsets = tl.arange(0, BLOCK // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    for tile in range(split * each, tl.minimum(split * each + each, draft_tiles)):
        ids = tile * BLOCK + offsets
        x = tl.load(row + ids, mask=ids < drafts.vocabulary, other=float("-inf")).to(tl.float32)
        largest, total, _ = sum_up(x, 1.0, False)
        tl.store(statistics.draft_max + out + tile, largest)
        tl.store(statistics.draft_sum + out + tile, total)
