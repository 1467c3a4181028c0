"""The last launch, for requests that the scan cannot complete: draws their last token.

One program handles one tile of one request and writes the weight of the tile to the workspace. The last program of a
request draws a tile and then a token from it, both by inverse CDF, writes the outputs and resets the request's words to
0.

Let p be the row's distribution after filters. After the last draft, the weight of a token is p. After a rejection it is
max(P p - q, 0) if the rejected token was sampled from q; otherwise it is p, and 0 for the rejected token. P is 1, or
the share that remains by the block rule. If all weights are 0, the token is drawn from p.

Memory order: a barrier, then an acquire-release count, as in the scan. Weights are read past the L1 cache. Only earlier
launches have written the request's state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.spec_verify.kernel_emit import emit, last_uniform, row_whole
from slipstream_kernels.spec_verify.kernel_primitives import exponentials, pick
from slipstream_kernels.spec_verify.kernel_scan import kind
from slipstream_kernels.spec_verify.kernel_state import first_open
from slipstream_kernels.spec_verify.kernel_threshold import is_sampled
from slipstream_kernels.spec_verify.kernel_tile import (
    draft_length,
    drafted_token,
    first_row,
    inverse_temperature_of,
    is_filtered,
    load_vectors,
)


@triton.jit
def kept_in_row(step, filters, statistics, request, j, r, inverse_temperature, draft_count):
    """The row's largest logit, its smallest kept logit, and the sum of exp((x - largest) / T) over the kept logits: NaN
    if the row has no distribution."""
    best, mass = row_whole(step, statistics, request, j, r, inverse_temperature, draft_count)
    least = tl.full([], float("-inf"), tl.float32)
    if filters.top_k is not None and is_filtered(step, filters, request) & (mass == mass):
        least = tl.load(statistics.threshold + r)
        mass = tl.load(statistics.kept_mass + r)
    return best, least, mass


@triton.jit
def weigh_tile(
    step,
    drafts,
    adjustments,
    statistics,
    request,
    j,
    first,
    best,
    least,
    share,
    inverse_temperature,
    sampled,
    left_out,
    draft_count,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Weights, adjusted logits (both float32) and ids of the tokens from `first` on in row `j`, each
    [BLOCK / VECTOR, VECTOR].

    The weight of a token is `share` exp((x - best) / T) if x is at least `least`, else 0. If `sampled`, q is
    subtracted, with a minimum of 0. The weight of the token `left_out` is 0.
    """
    row = first_row(step, request) + j
    x, ids = load_vectors(step, adjustments, request, row, j, first, BLOCK, VECTOR)
    weights = tl.where(x >= least, exponentials(x, best, inverse_temperature) * share, 0.0)
    if drafts.logits is not None and sampled:
        at = request.to(tl.int64) * draft_count + j
        row_of_draft = (
            drafts.logits + request.to(tl.int64) * drafts.request_stride + tl.cast(j, tl.int64) * drafts.step_stride
        )
        z = tl.load(row_of_draft + ids, mask=ids < drafts.vocabulary, other=float("-inf")).to(tl.float32)
        q = exponentials(z, tl.load(statistics.draft_row_max + at), 1.0) / tl.load(statistics.draft_row_sum + at)
        weights = tl.maximum(weights - q, 0.0)
    return tl.where(ids == left_out, 0.0, weights), x, ids


@triton.jit(do_not_specialize=["draft_count", "tiles"])
def residual(
    step,
    drafts,
    adjustments,
    filters,
    statistics,
    outputs,
    draft_count,
    tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_RULE: tl.constexpr,
):
    """Grid: one axis with `tiles` programs per request. TILES and STEPS are powers of two not below `tiles` and K + 1;
    BLOCK is the scan's tile size."""
    request, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    simple, _ = kind(step, drafts, filters, request, tl.load(step.temperature + request), BLOCK_RULE)
    if simple:
        return
    steps = tl.arange(0, STEPS)
    end = first_open(tl.load(statistics.state + request))
    terminal = tl.sum(tl.where(((end >> steps) & 1) != 0, steps, 0), 0)
    length = draft_length(step, request, draft_count)
    r = request.to(tl.int64) * (draft_count + 1) + terminal
    inverse_temperature = inverse_temperature_of(tl.load(step.temperature + request))
    best, least, mass = kept_in_row(step, filters, statistics, request, terminal, r, inverse_temperature, draft_count)
    broken = mass != mass
    sampled = is_sampled(step, drafts, statistics, request, terminal, length, draft_count)
    drafted = drafted_token(step, request, terminal, length)
    left_out = tl.where(sampled, -1, drafted)
    share = 1.0 / mass
    if BLOCK_RULE:
        share = tl.where(sampled, tl.load(statistics.draft_scale + request) * share, share)

    if not broken:
        if sampled | (least > float("-inf")):
            weights, _x, _ids = weigh_tile(
                step, drafts, adjustments, statistics, request, terminal, tile * BLOCK,
                best, least, share, inverse_temperature, sampled, left_out, draft_count, BLOCK, VECTOR,
            )  # fmt: skip
            weight = tl.sum(tl.sum(weights, 1), 0)
        else:  # the scan has summed the row's tokens except the drafted one
            at = r * tiles + tile
            scale = exponentials(tl.load(statistics.tile_max + at), best, inverse_temperature)
            weight = tl.load(statistics.tile_sum + at) * scale * share
        tl.store(statistics.weight + request * tiles + tile, weight)

    tl.debug_barrier()
    done = tl.atomic_add(statistics.weights_done + request, 1, sem="acq_rel", scope="gpu")
    if done == tiles - 1:
        token, token_logit = tl.full([], -1, tl.int32), tl.full([], 0.0, tl.float32)
        if not broken:
            token, token_logit = _draw(
                step, drafts, adjustments, statistics, request, terminal, length, best, least, mass, share,
                inverse_temperature, sampled, left_out, draft_count, tiles, BLOCK, VECTOR, TILES,
            )  # fmt: skip
        emit(outputs, step, statistics, request, terminal, token, token_logit, broken, draft_count, STEPS)
        tl.store(statistics.state + request, tl.full([], 0, tl.int64))
        tl.store(statistics.weights_done + request, 0)


@triton.jit
def _draw(
    step,
    drafts,
    adjustments,
    statistics,
    request,
    j,
    length,
    best,
    least,
    mass,
    share,
    inverse_temperature,
    sampled,
    left_out,
    draft_count,
    tiles,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
):
    """Draw a token of row `j` by weight, once all tiles have their weights; return it with its adjusted logit.

    The draw goes over the tiles, then over the vectors of one tile, then within one vector, and recomputes the weights
    each time, which keeps the number of registers low.
    """
    number = tl.arange(0, TILES)
    weights_at = statistics.weight + request * tiles + number
    tile_weights = tl.load(weights_at, mask=number < tiles, other=0.0, cache_modifier=".cg")
    if tl.sum(tile_weights, 0) <= 0:
        sampled, left_out, share = sampled & False, tl.full([], -1, tl.int32), 1.0 / mass
        for tile in range(tiles):
            weights, x, ids = weigh_tile(
                step, drafts, adjustments, statistics, request, j, tile * BLOCK,
                best, least, share, inverse_temperature, sampled, left_out, draft_count, BLOCK, VECTOR,
            )  # fmt: skip
            tile_weights = tl.where(number == tile, tl.sum(tl.sum(weights, 1), 0), tile_weights)
    tile_weights = tile_weights.to(tl.float64)
    point = last_uniform(step, request, j, length) * tl.sum(tile_weights, 0)
    chosen = pick(tile_weights, number, point)
    point -= tl.sum(tl.where(number < chosen, tile_weights, 0.0), 0)

    weights, x, ids = weigh_tile(
        step, drafts, adjustments, statistics, request, j, chosen * BLOCK,
        best, least, share, inverse_temperature, sampled, left_out, draft_count, BLOCK, VECTOR,
    )  # fmt: skip
    vector_weights, vectors = tl.sum(weights, 1).to(tl.float64), tl.arange(0, BLOCK // VECTOR)
    vector = pick(vector_weights, vectors, point)
    point -= tl.sum(tl.where(vectors < vector, vector_weights, 0.0), 0)

    weights, x, ids = weigh_tile(
        step, drafts, adjustments, statistics, request, j, chosen * BLOCK + vector * VECTOR,
        best, least, share, inverse_temperature, sampled, left_out, draft_count, VECTOR, VECTOR,
    )  # fmt: skip
    weights, x, ids = tl.reshape(weights, [VECTOR]), tl.reshape(x, [VECTOR]), tl.reshape(ids, [VECTOR])
    token = pick(weights, ids, point)
    return token, tl.sum(tl.where(ids == token, x, 0.0), 0)
