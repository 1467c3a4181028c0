"""The block rule (see `block.py`): drafted tokens are accepted together. Runs between the scan and the last launch.

If the next draft was sampled, R of a prefix is a sum over the whole vocabulary, with one program per tile. Otherwise R
has a closed form. The last program of a request decides. It writes the same state as the kernels of the standard rule:
the accepted drafts and the row in which the request ends.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_primitives import ACCEPT, PURPOSES, exponentials, uniform
from slipstream_kernels.spec_verify.kernel_residual import kept_in_row, weigh_tile
from slipstream_kernels.spec_verify.kernel_state import ENDS
from slipstream_kernels.spec_verify.kernel_threshold import draft_probability, is_sampled
from slipstream_kernels.spec_verify.kernel_tile import draft_length, drafted_token, inverse_temperature_of


@triton.jit(do_not_specialize=["draft_count", "tiles", "parts"])
def accept_block(
    step,
    drafts,
    adjustments,
    filters,
    statistics,
    draft_count,
    tiles,
    parts,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
):
    """Grid: one axis with `parts` programs per request, (K - 1) * tiles if drafts may be sampled, else 1. TILES is a
    power of two not below `tiles`; BLOCK is the scan's tile size."""
    request, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    if tl.load(step.temperature + request) <= 0:
        return
    length = draft_length(step, request, draft_count)
    inverse_temperature = inverse_temperature_of(tl.load(step.temperature + request))
    if drafts.logits is not None:
        j, tile = 1 + part // tiles, part % tiles
        if is_sampled(step, drafts, statistics, request, j, length, draft_count):
            joint = tl.full([], 1.0, tl.float64)
            for i in range(j):
                joint, _ = _extend(joint, step, drafts, filters, statistics, request, i, length, draft_count)
            r = request.to(tl.int64) * (draft_count + 1) + j
            best, least, mass = kept_in_row(step, filters, statistics, request, j, r, inverse_temperature, draft_count)
            weight = tl.full([], 0.0, tl.float32)
            if joint > 0:
                weights, _, _ = weigh_tile(
                    step, drafts, adjustments, statistics, request, j, tile * BLOCK, best, least,
                    joint.to(tl.float32) / mass, inverse_temperature, True, -1, draft_count, BLOCK, VECTOR,
                )  # fmt: skip
                weight = tl.sum(tl.sum(weights, 1), 0)
            tl.store(statistics.block_mass + (request * draft_count + j) * tiles + tile, weight)

    tl.debug_barrier()
    done = tl.atomic_add(statistics.weights_done + request, 1, sem="acq_rel", scope="gpu")
    if done == parts - 1:
        _decide(step, drafts, filters, statistics, request, length, draft_count, tiles, TILES)
        tl.store(statistics.weights_done + request, 0)


@triton.jit
def _decide(step, drafts, filters, statistics, request, length, draft_count, tiles, TILES: tl.constexpr):
    """Find the longest accepted prefix, and write the request's state and P of that prefix."""
    accepted, broken = length * 0, length * 0 - 1
    joint = tl.full([], 1.0, tl.float64)
    scale = joint
    for i in range(length + 1):
        row_sum = tl.load(statistics.row_sum + request.to(tl.int64) * (draft_count + 1) + i)
        broken = tl.where((broken < 0) & (row_sum != row_sum), i, broken)
    if broken < 0:
        for i in range(1, length + 1):
            joint, valid = _extend(joint, step, drafts, filters, statistics, request, i - 1, length, draft_count)
            chance = joint
            if i < length:
                left = _mass_left(
                    joint, step, drafts, filters, statistics, request, i, length, draft_count, tiles, TILES
                )
                room = left + 1.0 - joint
                chance = tl.where(room > 0, left / tl.where(room > 0, room, 1.0), 0.0)
            purpose = tl.full([], ACCEPT, tl.int32) + PURPOSES * (i - 1)  # as `step_purpose`
            eta = uniform(tl.load(step.seed + request), tl.load(step.positions + request) + (i - 1), purpose)
            longer = valid & (eta < chance)
            accepted, scale = tl.where(longer, i, accepted), tl.where(longer, joint, scale)
    end = tl.where(broken < 0, accepted, broken)
    bit = tl.full([], 1, tl.int64)
    tl.store(statistics.draft_scale + request, scale.to(tl.float32))
    tl.store(statistics.state + request, ((bit << end) - 1) | (bit << (end + ENDS)))


@triton.jit
def _extend(joint, step, drafts, filters, statistics, request, i, length, draft_count):
    """P extended by the token drafted at step `i`, float64, and whether there is such a token."""
    drafted, p = _target_probability(step, filters, statistics, request, i, length, draft_count)
    sampled = is_sampled(step, drafts, statistics, request, i, length, draft_count)
    q = draft_probability(drafts, statistics, request, i, drafted, sampled, draft_count)
    ahead = joint * p
    # q = 0: a token with p = 0 ends the block, a token with p > 0 does not limit it.
    extended = tl.where(q > 0, ahead / tl.where(q > 0, q, 1.0), (ahead > 0).to(tl.float64))
    return tl.minimum(extended, 1.0), drafted >= 0


@triton.jit
def _target_probability(step, filters, statistics, request, i, length, draft_count):
    """The token drafted at step `i`, -1 for none, and its p, float64."""
    drafted = drafted_token(step, request, i, length)
    r = request.to(tl.int64) * (draft_count + 1) + i
    inverse_temperature = inverse_temperature_of(tl.load(step.temperature + request))
    best, least, mass = kept_in_row(step, filters, statistics, request, i, r, inverse_temperature, draft_count)
    x = tl.load(statistics.drafted + r, mask=drafted >= 0, other=float("-inf"))
    weight = tl.where(x >= least, exponentials(x, best, inverse_temperature), 0.0)
    return drafted, (weight / mass).to(tl.float64)


@triton.jit
def _mass_left(joint, step, drafts, filters, statistics, request, i, length, draft_count, tiles, TILES: tl.constexpr):
    """R of the first `i` drafted tokens from their P: the mass of max(P p - q, 0) in the row after them, float64."""
    _, p = _target_probability(step, filters, statistics, request, i, length, draft_count)
    left = joint * (1.0 - p)
    if drafts.logits is not None and is_sampled(step, drafts, statistics, request, i, length, draft_count):
        number = tl.arange(0, TILES)
        at = statistics.block_mass + (request * draft_count + i) * tiles + number
        masses = tl.load(at, mask=number < tiles, other=0.0, cache_modifier=".cg")
        left = tl.sum(masses.to(tl.float64), 0)
    return left
