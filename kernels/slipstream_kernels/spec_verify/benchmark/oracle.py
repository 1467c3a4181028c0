"""The verification rule in float64: distance of a result from the decisions that its random numbers imply.

This code shares nothing with the PyTorch implementation. It samples nothing; for each decision in a result it computes
how far the random number would have to move to make that decision correct. A correct decision has distance 0. A
decision within rounding error of a boundary has a distance of about that error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream_kernels.counter_random import Purpose, uniform
from slipstream_kernels.spec_verify.benchmark.cases import Inputs
from slipstream_kernels.spec_verify.result import PADDING, Verification


def distance(given: Inputs, result: Verification, request: int) -> float:
    """The largest such distance, as a probability. Infinite where no random number gives the result.

    For requests with a temperature above 0, without filters and with finite logits.
    """
    drafted = given.draft_token_ids[request, : int(given.draft_lengths[request])].tolist()
    emitted = [token for token in result.token_ids[request].tolist() if token != PADDING]
    accepted = len(emitted) - 1
    tidy = result.token_ids[request, : accepted + 1].tolist() == emitted
    counted = (int(result.accepted[request]), int(result.lengths[request])) == (accepted, accepted + 1)
    if not (tidy and counted and 0 <= accepted <= len(drafted) and emitted[:-1] == drafted[:accepted]):
        return math.inf
    worst = 0.0
    for step, token in enumerate(drafted[: accepted + 1]):
        missing = _chance(given, request, step, token) - _random(given, request, step, Purpose.ACCEPT)
        worst = max(worst, missing if step == accepted else -missing)
    return max(worst, _distance_of_draw(given, request, drafted, accepted, emitted[-1]))


def _chance(given: Inputs, request: int, step: int, token: int) -> float:
    """The acceptance probability p / q of a drafted token."""
    p = _target(given, request, step)[token]
    q = 1.0 if given.draft_logits is None else _draft(given, request, step)[token]
    return min(float(p / q), 1.0)


def _distance_of_draw(given: Inputs, request: int, drafted: list[int], accepted: int, token: int) -> float:
    weights = _target(given, request, accepted)
    purpose = Purpose.TARGET
    if accepted < len(drafted):
        purpose = Purpose.RESIDUAL
        if given.draft_logits is None:
            weights[drafted[accepted]] = 0.0
        else:
            weights = (weights - _draft(given, request, accepted)).clamp_(min=0.0)
    if weights[token] == 0:
        return math.inf
    cdf = weights.cumsum(0) / weights.sum()
    below = float(cdf[token - 1]) if token else 0.0
    drawn = _random(given, request, accepted, purpose)
    return max(below - drawn, drawn - float(cdf[token]), 0.0)


def _target(given: Inputs, request: int, step: int) -> Tensor:
    """p of a request's row `step`: float64 [V]."""
    first = int((given.draft_lengths[:request] + 1).sum())
    return (given.target_logits[first + step].double() / given.sampling.temperature[request]).softmax(-1)


def _draft(given: Inputs, request: int, step: int) -> Tensor:
    """q of a request's drafted token `step`: float64 [V]."""
    assert given.draft_logits is not None
    return given.draft_logits[request, step].double().softmax(-1)


def _random(given: Inputs, request: int, step: int, purpose: Purpose) -> float:
    at = torch.stack((given.sampling.seed[request], given.positions[request] + step)).cpu()
    return float(uniform(at[0], at[1], purpose))
