"""Sampling: the token that plain decoding with a seed has at a position, from one row of logits.

The draw is an exponential race. With independent exponential numbers E_i, the index of the largest w_i / E_i has
probability w_i / (w_1 + ... + w_n) (the Gumbel-max trick, without its second logarithm). Rounding errors of the weights
change the winner only if two ratios are nearly equal, at any size of the vocabulary. A race over all tokens would need
noise for each of them. Instead, a token id is written as three digits, a tile, a group of the tile and a token of the
group, and each digit is drawn in turn, given the earlier ones, by a race over the sums of the weights.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.counter_random import exponentials

GROUP: Final = 64
"""Tokens per group, and groups per tile."""

TILE: Final = GROUP * GROUP
"""Tokens per tile. Number i < 64 of a draw's noise belongs to token i of its group, number 64 + i to group i of its
tile, and number 128 + i to tile i."""


def choose(weights: Tensor, scores: Tensor, sampling: SamplingBatch, positions: Tensor) -> Tensor:
    """The token of each row, int64 [N]: the best one of a greedy row, else a drawn one. Arbitrary in rows with NaN.

    Args:
        weights: float32 [N, V], not negative, as `filtered` gives them.
        scores: float32 [N, V], as `scaled` gives them.
        sampling: the parameters of the N rows.
        positions: int64 [N].
    """
    drawn = draw(weights, sampling.seed, positions)
    return torch.where(sampling.temperature == 0, scores.argmax(-1), drawn) if sampling.any_greedy else drawn


def draw(weights: Tensor, seed: Tensor, positions: Tensor) -> Tensor:
    """Draw an index from each row by the exponential race: int64 [N]. Arbitrary, but an index, in rows with NaN.

    Args:
        weights: float32 [N, V], not negative, at least one above 0 in each row. Rows need not sum to 1.
        seed: int64 [N].
        positions: int64 [N].
    """
    rows, vocabulary = weights.shape
    tiles, on_cpu = -(-vocabulary // TILE), weights.device.type == "cpu"
    tokens: Any = _padded(weights, GROUP).view(rows, -(-vocabulary // GROUP), GROUP)  # [N, groups, 64]
    groups: Any = tokens.sum(-1)
    sums: Any = None
    if tiles > 1:
        groups = _padded(groups, GROUP).view(rows, tiles, GROUP)
        sums = groups.sum(-1).numpy() if on_cpu else groups.sum(-1)
    noise = exponentials(seed, positions, 2 * GROUP + tiles)
    each: Any = np.arange(rows) if on_cpu else torch.arange(rows, device=weights.device)
    if on_cpu:  # NumPy's calls take less time than PyTorch's
        tokens, groups = tokens.numpy(), groups.numpy()
    chosen = 0
    if tiles > 1:
        tile = (sums / noise[:, 2 * GROUP :]).argmax(1)
        groups, chosen = groups[each, tile], tile * GROUP
    chosen = chosen + (groups / noise[:, GROUP : GROUP + groups.shape[1]]).argmax(1)
    token = chosen * GROUP + (tokens[each, chosen] / noise[:, :GROUP]).argmax(1)
    return torch.from_numpy(token) if on_cpu else token


def _padded(x: Tensor, multiple: int) -> Tensor:
    """`x` [N, n] with zeros up to the next multiple of `multiple` columns."""
    missing = -x.size(1) % multiple
    return pad(x, (0, missing)) if missing else x
