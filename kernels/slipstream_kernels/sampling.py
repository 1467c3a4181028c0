"""Sampling without verification: the draft's own tokens, and plain decoding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream_kernels.autograd import without_grad
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.counter_random import uniform
from slipstream_kernels.filters import argmax_ids, check_rows, filtered, repaired, scaled


@without_grad
def sample(logits: Tensor, sampling: SamplingBatch, positions: Tensor, purpose: int) -> tuple[Tensor, Tensor | None]:
    """Choose one token per row. Rows with invalid logits have a result too, see `filtered_probs`.

    Args:
        logits: [N, V], any float type.
        sampling: the parameters of the N rows.
        positions: absolute position of each row's chosen token, int64 [N].
        purpose: a `Purpose`, which with (seed, position) determines the random number. Drafts for block verification
            use `step_purpose`.

    Returns:
        Token ids, int64 [N], and the logarithm of their distribution, float32 [N, V], with -inf for tokens that a
        filter dropped. `verify` takes the latter as `draft_logits`. It is None if every row is greedy.

    Raises:
        ValueError: an argument's shape, type or device is wrong, or `purpose` does not fit 32 bits.
    """
    check_rows(logits, sampling)
    _check_positions(positions, purpose, logits)
    if sampling.all_greedy:
        return argmax_ids(logits), None
    scores = scaled(repaired(logits), sampling)
    probs = filtered(scores.softmax(-1), scores, sampling)
    token_ids = draw(probs, uniform(sampling.seed, positions, purpose))
    if sampling.any_filter or sampling.any_greedy:
        # The logarithm of `probs` itself would take six times as long on the CPU.
        scores = scores.masked_fill_(probs == 0, -math.inf)
    return token_ids, scores.log_softmax(-1)


def _check_positions(positions: Tensor, purpose: int, logits: Tensor) -> None:
    if not isinstance(positions, Tensor):
        raise ValueError(f"positions is {type(positions).__name__}: must be a torch.Tensor")
    if positions.dim() != 1 or positions.size(0) != logits.size(0):
        raise ValueError(f"positions has shape {list(positions.shape)}: must be [{logits.size(0)}], as logits has rows")
    if positions.dtype != torch.int64:
        raise ValueError(f"positions is {positions.dtype}: must be torch.int64")
    if positions.device != logits.device:
        raise ValueError(f"positions is on {positions.device}: logits is on {logits.device}")
    if not isinstance(purpose, int) or not 0 <= purpose < 2**32:
        raise ValueError(f"purpose = {purpose!r}: must be a Purpose or an integer in 0..{2**32 - 1}")


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw an index from each row by inverse CDF: int64 [N]. V where a row has NaN.

    Args:
        weights: [N, V], not negative, at least one above 0 in each row. Rows need not sum to 1.
        uniforms: float64 [N] in [0, 1), multiples of 2^-52.
    """
    cdf = weights.cumsum(-1, dtype=torch.float64)
    # `right` gives the first index whose cumulative weight is above the threshold. Its weight is never 0.
    return torch.searchsorted(cdf, cdf[:, -1:] * uniforms[:, None], right=True)[:, 0]
