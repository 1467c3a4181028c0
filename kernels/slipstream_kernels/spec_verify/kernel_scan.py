"""The first launch, and the only one for most batches: reads each row of logits at most once.

A program handles one split of one row, that is, some of its tiles. Programs are numbered position-major, row 0 of all
requests first. A GPU starts them roughly in this order, so row j is often decided before row j + 1 starts. The order
affects only the amount of data read:

- After writing the statistics of its tiles, a program increments `rows_done`. The last program of a row combines the
  row, judges its drafted token and publishes the result in the request's `state`: accepted at j, or the end at j
  (rejected, broken or the last row). Bits are never cleared during the launch.
- A program that finds an end before its row in `state` stops reading and counts itself as skipping, so its row is never
  judged. An end at j' means that row j' is not accepted: the request ends there or earlier, and no later row can be the
  terminal one. Rows before the first end are never skipped, so they are complete.
- A request is resolved when its lowest row without an accepted bit has an end bit. Bits are set atomically, so exactly
  one program changes the state from unresolved to resolved, and that program emits.
- After all rows are finished, no program uses the request's counters, and they are reset to 0 for the next launch. The
  program that completes a row resets the row's counter.

Memory order: all counting and publishing is acquire-release at GPU scope. A barrier orders the writes of all threads
before the atomic operation of the one thread, so a program that observes the count observes the statistics. Release is
cumulative: a program that observes a bit of `state` observes the whole row behind it, even if a third program set a bit
in between (read-modify-writes continue a release sequence). Statistics are read with `.cg`, from the L2 cache that all
multiprocessors share, after their last write. `state` is read at any time by a relaxed atomic operation; an outdated
value only costs time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_emit import emit_simple
from slipstream_kernels.spec_verify.kernel_finish_row import finish_row
from slipstream_kernels.spec_verify.kernel_scan_tiles import scan_draft, scan_target
from slipstream_kernels.spec_verify.kernel_state import ENDS, current, first_open, is_resolved
from slipstream_kernels.spec_verify.kernel_tile import (
    draft_length,
    drafted_token,
    first_row,
    inverse_temperature_of,
    is_filtered,
)

_SKIPPED = tl.constexpr(1 << 16)
"""Added to a row's counter by a skipping program, in addition to 1. Rows have fewer programs than this."""


# These sizes change from call to call. Without this, the compiler would specialise on 1 and on multiples of 16.
@triton.jit(do_not_specialize=["requests", "draft_count", "splits", "tiles", "draft_tiles"])
def scan(
    step,
    drafts,
    adjustments,
    filters,
    statistics,
    outputs,
    requests,
    draft_count,
    splits,
    tiles,
    draft_tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    DRAFT_TILES: tl.constexpr,
    STEPS: tl.constexpr,
    LAZY: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK_RULE: tl.constexpr,
):
    """Grid: one axis with one program per (row, request, split). The counters and states in `statistics` are 0 before
    the launch and 0 after it, except the states of requests that later launches complete. TILES, DRAFT_TILES and STEPS
    are powers of two not below `tiles`, `draft_tiles` and K + 1."""
    pid = tl.program_id(0)
    j = pid // (requests * splits)
    request = (pid // splits) % requests
    split = pid % splits
    # Issue all loads that the first tile depends on before using the first result.
    length = draft_length(step, request, draft_count)
    drafted = drafted_token(step, request, j, draft_count)
    temperature = tl.load(step.temperature + request)
    state = tl.full([], 0, tl.int64)
    if LAZY:
        state = current(statistics.state, request)
    first = first_row(step, request)
    if j > length:
        return
    drafted = tl.where(j < length, drafted, -1)
    inverse_temperature = inverse_temperature_of(temperature)
    sampled = False
    if drafts.logits is not None:
        sampled = (temperature > 0) & (j < length)
        if drafts.onehot is not None:
            sampled = sampled & (tl.load(drafts.onehot + request) == 0)

    r = request.to(tl.int64) * (draft_count + 1) + j
    skipped = scan_target(
        step,
        adjustments,
        statistics,
        request,
        j,
        r,
        first + j,
        drafted,
        inverse_temperature,
        state,
        split,
        splits,
        tiles,
        BLOCK,
        VECTOR,
        LAZY,
        AHEAD,
    )
    if drafts.logits is not None:  # noqa: SIM102 - known to the compiler
        if sampled & (not skipped):
            scan_draft(drafts, statistics, request, j, split, splits, draft_count, draft_tiles, BLOCK, VECTOR)

    tl.debug_barrier()
    done = tl.atomic_add(statistics.rows_done + r, tl.where(skipped, 1 + _SKIPPED, 1), sem="acq_rel", scope="gpu")
    if (done % _SKIPPED) == splits - 1:
        complete = (done < _SKIPPED) & (not skipped)
        _finish_row(
            step,
            drafts,
            adjustments,
            filters,
            statistics,
            outputs,
            request,
            j,
            r,
            first,
            length,
            drafted,
            sampled,
            temperature,
            inverse_temperature,
            complete,
            draft_count,
            tiles,
            draft_tiles,
            BLOCK,
            VECTOR,
            TILES,
            DRAFT_TILES,
            STEPS,
            BLOCK_RULE,
        )


@triton.jit
def _finish_row(
    step,
    drafts,
    adjustments,
    filters,
    statistics,
    outputs,
    request,
    j,
    r,
    first,
    length,
    drafted,
    sampled,
    temperature,
    inverse_temperature,
    complete,
    draft_count,
    tiles,
    draft_tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    DRAFT_TILES: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_RULE: tl.constexpr,
):
    """Run by the last program of each row: judge the drafted token if the row is `complete`, publish the result, and
    emit if it resolves the request. After the request's last row, reset its counters."""
    tl.store(statistics.rows_done + r, 0)
    simple, filtered = kind(step, drafts, filters, request, temperature, BLOCK_RULE)
    if complete:
        broken, accepted = finish_row(
            step,
            drafts,
            adjustments,
            statistics,
            request,
            j,
            r,
            first + j,
            drafted,
            sampled,
            inverse_temperature,
            draft_count,
            tiles,
            draft_tiles,
            BLOCK,
            VECTOR,
            TILES,
            DRAFT_TILES,
        )
        undecided = filtered & (not broken) & (j < length)
        bit = tl.full([], 1, tl.int64) << tl.where(accepted, j, j + ENDS)
        bit = tl.where(undecided, 0, bit)
        tl.debug_barrier()
        before = tl.atomic_or(statistics.state + request, bit, sem="acq_rel", scope="gpu")
        now = before | bit
        if simple & is_resolved(now) & (not is_resolved(before)):
            steps = tl.arange(0, STEPS)
            terminal = tl.sum(tl.where((first_open(now) >> steps) & 1 != 0, steps, 0), 0)
            emit_simple(
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
                BLOCK,
                VECTOR,
                TILES,
                STEPS,
            )
    tl.debug_barrier()
    finished = tl.atomic_add(statistics.rows_finished + request, 1, sem="acq_rel", scope="gpu")
    if finished == length:
        tl.store(statistics.rows_finished + request, 0)
        if simple:
            tl.store(statistics.state + request, tl.full([], 0, tl.int64))


@triton.jit
def kind(step, drafts, filters, request, temperature, BLOCK_RULE: tl.constexpr):
    """Whether the scan completes the request, and whether later launches must judge its drafted tokens: filters and the
    block rule need more than a row's normaliser. The scan always completes greedy requests."""
    judged_later = False
    if BLOCK_RULE:
        judged_later = temperature > 0
    elif filters.top_k is not None:
        judged_later = is_filtered(step, filters, request)
    simple = not judged_later
    if drafts.logits is not None:
        onehot = temperature <= 0
        if drafts.onehot is not None:
            onehot = onehot | (tl.load(drafts.onehot + request) != 0)
        simple = simple & onehot
    return simple, judged_later
