"""The textbook algorithm, one request and one position at a time, in float64: the oracle that `verify` is
tested by.

It follows Leviathan et al. (2211.17192), algorithm 1, line by line and shares nothing with `verify` but the
random numbers. Never used to serve: it is about a hundred times slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream_kernels.counter_random import Purpose, uniform


def verify_one(
    target_logits: Tensor,
    draft_token_ids: Sequence[int],
    draft_probs: Tensor | None,
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    position: int,
) -> list[int]:
    """The tokens that one step emits for one request.

    Args:
        target_logits: [k + 1, V] for k drafted tokens.
        draft_token_ids: the k drafted tokens.
        draft_probs: [k, V], what they were sampled from; None when they were not sampled.
    """
    emitted: list[int] = []
    for step, drafted in enumerate(draft_token_ids):
        p = distribution(target_logits[step], temperature, top_p, top_k)
        q = one_hot(drafted, len(p)) if draft_probs is None else draft_probs[step].double().tolist()
        if _random(seed, position + step, Purpose.ACCEPT) * q[drafted] < p[drafted]:
            emitted.append(drafted)
            continue
        residual = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
        weights = residual if any(residual) else p
        return [*emitted, pick(weights, _random(seed, position + step, Purpose.RESIDUAL))]
    last = len(draft_token_ids)
    p = distribution(target_logits[last], temperature, top_p, top_k)
    return [*emitted, pick(p, _random(seed, position + last, Purpose.TARGET))]


def distribution(logits: Tensor, temperature: float, top_p: float, top_k: int) -> list[float]:
    """The probabilities that a request samples from, for one row of `logits` [V] without NaN or infinity."""
    scores = logits.double().tolist()
    if temperature == 0:
        return one_hot(scores.index(max(scores)), len(scores))
    weights = [math.exp((score - max(scores)) / temperature) for score in scores]
    if 0 < top_k < len(weights):
        last_kept = sorted(weights, reverse=True)[top_k - 1]
        weights = [weight if weight >= last_kept else 0.0 for weight in weights]
    if top_p < 1:
        total = sum(weights)
        weights = [
            weight if weight == max(weights) or sum(w for w in weights if w > weight) < top_p * total else 0.0
            for weight in weights
        ]
    return [weight / sum(weights) for weight in weights]


def pick(weights: Sequence[float], uniform_number: float) -> int:
    """Inverse CDF: the first index at which the running sum exceeds `uniform_number` of the total."""
    threshold, running = uniform_number * sum(weights), 0.0
    for index, weight in enumerate(weights):
        running += weight
        if running > threshold:
            return index
    raise AssertionError("the weights add up to more than a fraction of their sum")


def one_hot(index: int, size: int) -> list[float]:
    """All probability on `index`."""
    return [1.0 if i == index else 0.0 for i in range(size)]


def _random(seed: int, position: int, purpose: Purpose) -> float:
    return float(uniform(torch.tensor(seed), torch.tensor(position), purpose))
