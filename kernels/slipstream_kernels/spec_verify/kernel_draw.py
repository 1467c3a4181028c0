"""The draw of a row's token, as `slipstream_kernels.sampling` defines it: tile, group of the tile, token of the group.

The scan's statistics are the weights of the tiles. Only the chosen tile is read again, for the weights of its groups,
and then the chosen group. A draw takes tiles + 128 numbers of noise, each an exponential race's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels import counter_random, sampling
from slipstream_kernels.spec_verify.kernel_primitives import NO_TOKEN, exponentials
from slipstream_kernels.spec_verify.kernel_tile import load_adjusted, load_vectors

TILE = tl.constexpr(sampling.TILE)
GROUP = tl.constexpr(sampling.GROUP)

_GAMMA = tl.constexpr(counter_random.GAMMA)
_MIX_1 = tl.constexpr(counter_random.MIX_1)
_MIX_2 = tl.constexpr(counter_random.MIX_2)
_TWO_TO_MINUS_52 = tl.constexpr(2.0**-52)


@triton.jit
def draw(
    step,
    adjustments,
    request,
    row,
    j,
    tile_weights,
    best,
    least,
    greedy,
    inverse_temperature,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
):
    """The token of a row, int32.

    Args:
        row, j: the row's place in the logits (int64), and its step.
        tile_weights: float32 [TILES], the sum of exp((x - best) / T) over each tile's kept tokens. Greedy: only tiles
            that have the largest logit have a weight.
        best: the row's largest logit.
        least: the smallest kept logit.
    """
    key = key_of(tl.load(step.seed + request), tl.load(step.positions + request) + j)
    tile = winner(tile_weights, key, 2 * GROUP, greedy, TILES)
    x = load_vectors(step, adjustments, request, row, j, tile * TILE, TILE, VECTOR)
    vectors = tl.sum(_weights(x, best, least, greedy, inverse_temperature), 1)
    groups = tl.sum(tl.reshape(vectors, [GROUP, GROUP // VECTOR]), 1)
    first = tile * TILE + winner(groups, key, GROUP, greedy, GROUP) * GROUP
    x = load_adjusted(step, adjustments, request, row, j, first, GROUP)
    weights = _weights(x, best, least, greedy, inverse_temperature)
    return first + winner(weights, key, 0, greedy, GROUP)


@triton.jit
def _weights(x, best, least, greedy, inverse_temperature):
    """Weights of tokens. Greedy: 1 at the best logit, else 0."""
    kept = tl.where(x >= least, exponentials(x, best, inverse_temperature), 0.0)
    return tl.where(greedy, (x == best).to(tl.float32), kept)


@triton.jit
def winner(weights, key, first, greedy, SIZE: tl.constexpr):
    """The index of the largest weight per noise, int32, from `weights` float32 [SIZE] and the key's numbers from
    `first` on. Greedy: the first index with a weight."""
    number = tl.arange(0, SIZE)
    ratios = weights.to(tl.float64) / exponential(key, number + first)
    ratios = tl.where(greedy, (weights > 0).to(tl.float64), ratios)
    return tl.min(tl.where(ratios == tl.max(ratios, 0), number, NO_TOKEN), 0)


@triton.jit
def key_of(seed, position):
    """The key of (seed, position), uint64, from int64 scalars."""
    return _mix(_mix(seed.to(tl.uint64)) + position.to(tl.uint64) * _GAMMA)


@triton.jit
def exponential(key, index):
    """Numbers `index` (int32) of a key, float64, as `counter_random.exponentials` gives them."""
    bits = _mix(key + (index + 1).to(tl.uint64) * _GAMMA) >> 12
    return -tl.log((bits.to(tl.int64).to(tl.float64) + 0.5) * _TWO_TO_MINUS_52)


@triton.jit
def _mix(word):
    """The mixing function of SplitMix64, of uint64 values."""
    word = (word ^ (word >> 30)) * _MIX_1
    word = (word ^ (word >> 27)) * _MIX_2
    return word ^ (word >> 31)
