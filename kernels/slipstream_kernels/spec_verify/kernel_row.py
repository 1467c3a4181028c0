"""Completion of a row and of a request, for both launches.

A row's program draws the row's token, writes it to the outputs, and marks the row as the request's end if the token is
not the drafted one. A program that finds an end before its row skips the row. The lowest end is never skipped, and all
rows before it are complete and accepted: it is the terminal row. The program that finishes a request's last row removes
what later rows have written.

Memory order: counting is acquire-release at GPU scope. A barrier orders the writes of all threads before the atomic
operation of the one thread, so a program that observes the count observes the rows. Values that other programs wrote
are read with `.cg`, from the L2 cache that all multiprocessors share. `end` is read at any time by a relaxed atomic
operation; an outdated value only costs time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_draw import draw
from slipstream_kernels.spec_verify.kernel_primitives import exponentials
from slipstream_kernels.spec_verify.kernel_tile import drafted_token

NO_END = tl.constexpr(1 << 30)
"""Above every row of a request."""


@triton.jit
def current_end(statistics, request):
    """The request's `end` now, the same for all threads, while other programs may raise it.

    With a load, threads could see different values, diverge at the next branch and deadlock at a barrier inside it. An
    atomic operation is performed once, and its result is broadcast to all threads.
    """
    return tl.atomic_max(statistics.end + request, 0, sem="relaxed", scope="gpu")


@triton.jit
def ends_before(end, j):
    """Whether the request ends before row `j`."""
    return end + j > NO_END


@triton.jit
def combine_tiles(statistics, r, tiles, inverse_temperature, TILES: tl.constexpr):
    """The row's largest logit, the sum of exp((x - largest) / T), and maxima and weights of its tiles, [TILES] each.
    The sum is NaN if any tile's sum is, and 0 if no logit is above -inf."""
    number = tl.arange(0, TILES)
    at, inside = r * tiles + number, number < tiles
    maxima = tl.load(statistics.tile_max + at, mask=inside, other=float("-inf"), cache_modifier=".cg")
    sums = tl.load(statistics.tile_sum + at, mask=inside, other=0.0, cache_modifier=".cg")
    best = tl.max(maxima, 0)
    weights = sums * exponentials(maxima, best, inverse_temperature)
    return best, tl.sum(weights, 0), maxima, weights


@triton.jit
def complete_row(
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
    least,
    inverse_temperature,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
):
    """Write a row's token, and mark the request's end if it is here.

    `best`, `whole` and `maxima` as from `combine_tiles`; `weights` and `least` as `draw` takes them, for a request that
    is not greedy.
    """
    token = tl.full([], -1, tl.int32)
    if whole > 0:  # 0: nothing above -inf. NaN: a NaN, or +inf less itself
        greedy = tl.load(step.temperature + request) <= 0
        weights = tl.where(greedy, (maxima == best).to(tl.float32), weights)
        token = draw(
            step, adjustments, request, row, j, weights, best, least, greedy, inverse_temperature, VECTOR, TILES
        )
    tl.store(outputs.token_ids + r, token.to(tl.int64))
    if (token < 0) | (token != drafted_token(step, request, j, length)):
        tl.atomic_max(statistics.end + request, -j + NO_END, sem="relaxed", scope="gpu")


@triton.jit
def count_row(statistics, outputs, request, length, draft_count, STEPS: tl.constexpr):
    """Count a row that is complete or skipped. After the last one, write the rest of the request's outputs. STEPS is a
    power of two above K."""
    tl.debug_barrier()
    finished = tl.atomic_add(statistics.rows_finished + request, 1, sem="acq_rel", scope="gpu")
    if finished == length:
        terminal = -current_end(statistics, request) + NO_END
        first = request.to(tl.int64) * (draft_count + 1)
        broken = tl.load(outputs.token_ids + first + terminal, cache_modifier=".cg") < 0
        emitted = tl.where(broken, 0, terminal + 1)
        steps = tl.arange(0, STEPS)
        padding = (steps >= emitted) & (steps <= draft_count)
        tl.debug_barrier()  # All threads have read the token that may be removed.
        tl.store(outputs.token_ids + first + steps, tl.full([STEPS], -1, tl.int64), mask=padding)
        tl.store(outputs.accepted + request, (emitted - 1).to(tl.int64))
        tl.store(outputs.lengths + request, emitted.to(tl.int64))
