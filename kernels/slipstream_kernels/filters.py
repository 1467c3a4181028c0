"""The distribution that a request samples from: temperature, then top-k, then top-p, then min-p.

Top-p counts probability after top-k has renormalised it, as in transformers and vLLM. Min-p is last: it keeps a token
whose probability is at least `min_p` times that of the most probable token, which the other filters do not change. Ties
are resolved by value, not by sort order: a token whose logit equals that of the last kept token is kept too. The result
is therefore the same on every device, and at least one token is always kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream_kernels.batch import SamplingBatch

_PREFIX = 32
"""Number of largest logits per row that the CPU sorts first for top-p. They nearly always suffice; sorting a whole row
costs as much as a step of a small target. Rows that need more are sorted again with eight times as many."""


def scaled(logits: Tensor, sampling: SamplingBatch, best: Tensor) -> Tensor:
    """(logit - best of the row) / temperature, a float32 copy [N, V] that no temperature can overflow. Greedy requests
    use temperature 1. Rows with NaN, with +inf or without a value above -inf contain NaN.

    Args:
        logits: float32 [N, V].
        best: [N], the largest logit of each row.
    """
    temperature = sampling.temperature
    if sampling.any_greedy:
        temperature = temperature.masked_fill(temperature == 0, 1.0)
    return (logits - best[:, None]).div_(temperature[:, None])


def filtered(weights: Tensor, scores: Tensor, sampling: SamplingBatch) -> Tensor:
    """`weights` with 0 for the tokens that the filters drop: float32 [N, V], possibly written in place.

    The kept weights do not change, so the result of a row does not depend on the filters of other rows.

    Args:
        weights: exp(scores), float32 [N, V].
        scores: as `scaled` gives them.
        sampling: the parameters of the N rows. The result of a greedy row is arbitrary, but keeps its best token.
    """
    if sampling.any_top_p or sampling.largest_top_k:
        prefix = scores.size(-1) if scores.is_cuda else max(_PREFIX, sampling.largest_top_k)
        weights = _truncate(weights, scores, sampling, prefix)
    if sampling.any_min_p:
        _keep(weights, scores, sampling.min_p.log()[:, None])
    return weights


def _truncate(weights: Tensor, scores: Tensor, sampling: SamplingBatch, prefix: int) -> Tensor:
    """Apply top-k and top-p to `weights` [N, V], exp of `scores`, in place.

    Only the `prefix` largest scores of each row are sorted, and more in rows where these do not suffice.
    """
    top_p, top_k = sampling.top_p[:, None], sampling.top_k[:, None]
    vocabulary = scores.size(-1)
    prefix = min(prefix, vocabulary)
    largest, ids = scores.topk(prefix)
    limited = (top_k > 0) & (top_k < vocabulary)
    if sampling.largest_top_k:
        last = largest.gather(1, (top_k - 1).clamp(0, prefix - 1))
        _keep(weights, scores, last.masked_fill(~limited, -math.inf))
    settled = top_p >= 1
    if sampling.any_top_p:
        target = top_p * weights.sum(-1, keepdim=True)
        count = _count_below(weights.gather(1, ids), target)
        _keep(weights, scores, largest.gather(1, count - 1).masked_fill(settled, -math.inf))
        settled = settled | (count < prefix)
    if prefix == vocabulary:
        return weights
    settled = torch.where(limited, top_k <= prefix, settled) | (sampling.temperature[:, None] == 0)
    rest = (~settled).nonzero()[:, 0]
    if rest.numel():
        remaining = scores[rest]
        weights[rest] = _truncate(remaining.exp(), remaining, sampling.rows(rest), 8 * prefix)
    return weights


def _count_below(weights: Tensor, target: Tensor) -> Tensor:
    """Number of tokens that top-p keeps, int64 [N, 1], from the largest weights in descending order.

    A token is kept while the tokens before it weigh less than `target` [N, 1]. The first token is always kept.
    """
    before = weights.cumsum(-1, dtype=torch.float64) - weights
    return (before < target).sum(-1, keepdim=True).clamp_(min=1)


def _keep(weights: Tensor, scores: Tensor, cut: Tensor) -> None:
    """Drop tokens with a score below `cut` [N, 1] from `weights` [N, V], in place."""
    # The comparison writes float32 directly: a bool intermediate takes several times as long on the CPU.
    weights.mul_(torch.ge(scores, cut, out=torch.empty_like(scores)))
