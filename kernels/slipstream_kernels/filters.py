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

from slipstream_kernels.autograd import without_grad
from slipstream_kernels.batch import SamplingBatch

_LARGEST = torch.finfo(torch.float32).max
_PREFIX = 32
"""Number of largest logits per row that the CPU sorts first for top-p. They nearly always suffice; sorting a whole row
costs as much as a step of a small target. Rows that need more are sorted again with eight times as many."""


def argmax_ids(logits: Tensor) -> Tensor:
    """Index of the largest logit of each row of `logits` [N, V], the lowest on ties: int64 [N]. NaN counts as -inf."""
    return logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).argmax(-1)


@without_grad
def filtered_probs(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """The distribution of each row: float32 [N, V], with rows that sum to 1 within rounding.

    Rows with invalid logits have a result too: NaN counts as -inf and +inf as the largest finite number. A row without
    any finite logit gives probability 1 to token 0.

    Args:
        logits: [N, V], any float type; computed in float32.
        sampling: the parameters of the N rows. A greedy row has probability 1 at its argmax.

    Raises:
        ValueError: an argument's shape, type or device is wrong.
    """
    check_rows(logits, sampling)
    scores = scaled(repaired(logits), sampling)
    weights = filtered(scores.exp(), scores, sampling)
    probs = weights.div_(weights.sum(-1, keepdim=True))
    if not sampling.any_greedy:
        return probs
    one_hot = torch.zeros_like(probs).scatter_(1, scores.argmax(-1, keepdim=True), 1.0)
    return torch.where(sampling.temperature[:, None] == 0, one_hot, probs)


def check_rows(logits: Tensor, sampling: SamplingBatch) -> None:
    """Raise a ValueError unless `logits` are [N, V] and `sampling` has the parameters of N rows."""
    if not isinstance(logits, Tensor):
        raise ValueError(f"logits is {type(logits).__name__}: must be a torch.Tensor")
    if not isinstance(sampling, SamplingBatch):
        raise ValueError(f"sampling is {type(sampling).__name__}: must be a SamplingBatch")
    if logits.dim() != 2 or logits.size(1) == 0:
        raise ValueError(f"logits has shape {list(logits.shape)}: must be [N, V], with a vocabulary")
    if not logits.is_floating_point():
        raise ValueError(f"logits is {logits.dtype}: must be a float type")
    if sampling.fault is not None:
        raise ValueError(f"sampling.{sampling.fault}")
    if len(sampling) != logits.size(0):
        raise ValueError(f"sampling has {len(sampling)} rows: logits has {logits.size(0)}")
    if sampling.temperature.device != logits.device:
        raise ValueError(f"sampling.temperature is on {sampling.temperature.device}: logits is on {logits.device}")


def repaired(logits: Tensor) -> Tensor:
    """A float32 copy of `logits` [N, V] in which every row has a distribution."""
    finite = logits.to(torch.float32).nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)
    # Token 0 gets all probability if no other token is left. Otherwise its weight at this logit is 0.
    finite[:, :1].clamp_(min=-_LARGEST)
    return finite


def scaled(logits: Tensor, sampling: SamplingBatch, best: Tensor | None = None) -> Tensor:
    """(logit - best of the row) / temperature, a float32 copy [N, V] that no temperature can overflow. Greedy requests
    use temperature 1. Rows with NaN, with +inf or without a value above -inf contain NaN.

    Args:
        logits: float32 [N, V].
        best: [N], the largest logit of each row, if the caller already has it.
    """
    best = logits.amax(-1) if best is None else best
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
