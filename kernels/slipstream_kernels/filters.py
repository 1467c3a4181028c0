"""From logits to the distribution that a request samples from: temperature, then top-k, then top-p.

The order is that of transformers and vLLM: top-p counts probability after top-k has renormalised it. Ties are
settled by value, never by the order of a sort: a token whose logit equals that of the last one kept is kept
too. So the result is the same on every device, and at least one token is always kept.

Broken rows have an answer as well: NaN counts as -inf, +inf as the largest finite number, and a row in which
nothing is left gives all its probability to token 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream_kernels.batch import SamplingBatch

_LARGEST = torch.finfo(torch.float32).max
_PREFIX = 256
"""How many of the largest logits are sorted at first on the CPU, where a whole row costs more than a target
step."""


def argmax_ids(logits: Tensor) -> Tensor:
    """The largest of each row of `logits` [N, V], the lowest index on ties: int64 [N]. NaN counts as -inf."""
    return logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).argmax(-1)


def filtered_probs(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """The distribution of each row: float32 [N, V], every row adding up to 1 within rounding.

    Args:
        logits: [N, V], any float type; computed in float32.
        sampling: the parameters of the N rows. A greedy row has probability 1 at its argmax.
    """
    scores = _scores(logits)
    greedy_ids = scores.argmax(-1, keepdim=True) if sampling.any_greedy else None
    temperature = sampling.temperature[:, None]
    if greedy_ids is not None:
        temperature = temperature.masked_fill(temperature == 0, 1.0)
    scores.div_(temperature)
    if sampling.any_filter:
        scores = _filter(scores, sampling)
    probs = scores.softmax(-1)
    if greedy_ids is None:
        return probs
    one_hot = torch.zeros_like(probs).scatter_(1, greedy_ids, 1.0)
    return torch.where(sampling.temperature[:, None] == 0, one_hot, probs)


def _scores(logits: Tensor) -> Tensor:
    """A float32 copy [N, V], each row's largest value moved to 0 so that no temperature can overflow it."""
    scores = logits.to(torch.float32).nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)
    top = scores.amax(-1, keepdim=True)
    nothing_left = top == -math.inf
    scores[:, :1].masked_fill_(nothing_left, 0.0)
    return scores.sub_(top.masked_fill_(nothing_left, 0.0))


def _filter(scores: Tensor, sampling: SamplingBatch) -> Tensor:
    """`scores` [N, V] with -inf for every token that top-k or top-p drops."""
    vocabulary = scores.size(-1)
    prefix = vocabulary if scores.is_cuda else min(_PREFIX, vocabulary)
    cut, known = _cut(scores, sampling, prefix)
    if prefix < vocabulary and not known.all():
        cut, _ = _cut(scores, sampling, vocabulary)
    return scores.masked_fill(scores < cut, -math.inf)


def _cut(scores: Tensor, sampling: SamplingBatch, prefix: int) -> tuple[Tensor, Tensor]:
    """The score of the last token that each row keeps.

    Returns:
        The score, float32 [N, 1], and whether the `prefix` largest scores were enough to know it, bool [N,
        1].
    """
    vocabulary = scores.size(-1)
    top_p, top_k = sampling.top_p[:, None], sampling.top_k[:, None]
    no_top_p, no_top_k = top_p >= 1, (top_k <= 0) | (top_k >= vocabulary)
    largest, ids = scores.topk(prefix)

    last = largest.gather(1, (top_k - 1).clamp(0, prefix - 1))
    cut = last.masked_fill(no_top_k, -math.inf)
    mass = scores.masked_fill(scores < cut, -math.inf).softmax(-1).gather(1, ids)

    # A token stays while the more probable ones before it have not reached top-p: the first always does.
    before = mass.cumsum(-1, dtype=torch.float64) - mass
    kept = (before < top_p).sum(-1, keepdim=True)
    last = largest.gather(1, (kept - 1).clamp(min=0))
    cut = torch.maximum(cut, last.masked_fill(no_top_p, -math.inf))

    greedy = sampling.temperature[:, None] == 0
    known = greedy | torch.where(no_top_k, no_top_p | (kept < prefix), top_k <= prefix)
    return cut, known
