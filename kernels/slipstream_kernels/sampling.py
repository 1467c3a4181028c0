"""Choosing tokens where there is no draft to verify: the draft itself, and plain decoding."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.counter_random import Purpose, uniform
from slipstream_kernels.filters import argmax_ids, filtered_probs


def sample(
    logits: Tensor, sampling: SamplingBatch, positions: Tensor, purpose: Purpose
) -> tuple[Tensor, Tensor | None]:
    """Choose one token per row.

    Args:
        logits: [N, V], any float type.
        sampling: the parameters of the N rows.
        positions: absolute position of the token that each row chooses, int64 [N].
        purpose: what the token is for; with (seed, position) it determines the random number.

    Returns:
        Token ids, int64 [N], and the distribution they were drawn from, float32 [N, V]: what `verify` needs
        as `draft_probs`. None instead of the latter when every row is greedy.
    """
    if sampling.all_greedy:
        return argmax_ids(logits), None
    probs = filtered_probs(logits, sampling)
    return draw(probs, uniform(sampling.seed, positions, purpose)), probs


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw an index from each row by inverse CDF: int64 [N].

    Args:
        weights: [N, V], not negative, at least one above 0 in each row; need not add up to 1.
        uniforms: float64 [N] in [0, 1), multiples of 2^-52.
    """
    cdf = weights.cumsum(-1, dtype=torch.float64)
    # `right`: the first index whose cumulative weight is above the threshold, which never has weight 0.
    return torch.searchsorted(cdf, cdf[:, -1:] * uniforms[:, None], right=True)[:, 0]
