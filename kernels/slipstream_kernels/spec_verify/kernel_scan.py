"""The first launch, for most batches the only one: each row of logits is read once, or not at all.

One program takes one split of one row: some of its tiles. Programs are numbered position-major, row 0 of all requests
first, as a GPU starts them roughly in that order: by the time row j + 1 comes up, row j is often decided. Nothing
depends on the order but how much is read:

- Each program counts itself in `rows_done` when its tiles' statistics are written. The last of a row, whoever that
  is, sums the row up, judges its drafted token and publishes in the request's `state`: accepted j, or the end at j
  (rejected, broken or the last row). Bits are only ever set.
- A program that finds an end before its row in `state` reads no further, and counts itself as skipping: its row is
  never judged. An end at j' means that row j' is not accepted, so the request ends there or before, and no row behind
  it can be the one that is emitted from; rows before the first end are never skipped, so they are complete.
- The request is resolved when its lowest row without an accepted bit has an end bit. Setting bits is an atomic
  operation: exactly one program turns the state from unresolved into resolved, and emits.
- Once all rows are finished, nobody looks at the request's counters again, and they are set back to 0 for the next
  launch. A row's counter is set back by the program that saw it full.

Memory order: all counting and publishing is acquire-release at the GPU's scope. A barrier before it orders what all
threads of the program have written before the one thread that does it, so whoever sees the count sees the statistics;
release is cumulative, so whoever sees a bit of `state` sees the whole row behind it, also when a third program set a
bit in between (read-modify-writes continue a release sequence). Statistics are read with `.cg`, from the L2 cache that
all processors share, and only once nobody writes them any more. `state` is read at any time, by a relaxed atomic
operation; a value that is out of date only costs time.
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
"""Added to a row's counter beside the 1 of each program: there are fewer programs than that."""


# Sizes that change from call to call: the compiler is not to make a variant of each 1 and each multiple of 16.
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
    """One program per (row, request, split), over one axis. `statistics` counters and state are 0, and are again
    afterwards, but for the state of requests that later launches end. TILES, DRAFT_TILES and STEPS are powers of two
    not below `tiles`, `draft_tiles` and K + 1."""
    pid = tl.program_id(0)
    j = pid // (requests * splits)
    request = (pid // splits) % requests
    split = pid % splits
    # All that the first tile waits for is asked for at once, before the first answer is looked at.
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
    """What the last program of a row does, once for each row: judge its drafted token if the row is `complete`, publish
    that, emit if it settles the request; and after the request's last row, set its counters back."""
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
    """Whether the request ends in this launch, and whether its drafted tokens cannot be judged here: filters or the
    block rule take more than one row's normaliser. Greedy requests always end here."""
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
