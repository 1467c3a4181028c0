"""The verification rule in float64: how far each token of a result is from winning its draw.

This code shares only the noise with the PyTorch implementation. A token that wins all three races of its draw has
distance 0. A token that loses a race by rounding has a distance of about the rounding error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from slipstream_kernels.counter_random import exponentials
from slipstream_kernels.sampling import GROUP, TILE
from slipstream_kernels.spec_verify.benchmark.cases import Inputs
from slipstream_kernels.spec_verify.result import PADDING, Verification


def distance(given: Inputs, result: Verification, request: int) -> float:
    """The largest share of a winner's ratio that one of the request's tokens lacks. Infinite if the result is not of
    the form that the rule gives: accepted drafted tokens, then one more token, which differs from the next drafted one.

    For requests with a temperature above 0, without filters and with finite logits.
    """
    drafted = given.draft_token_ids[request, : int(given.draft_lengths[request])].tolist()
    emitted = [token for token in result.token_ids[request].tolist() if token != PADDING]
    accepted = len(emitted) - 1
    tidy = result.token_ids[request, : accepted + 1].tolist() == emitted
    counted = (int(result.accepted[request]), int(result.lengths[request])) == (accepted, accepted + 1)
    if not (tidy and counted and 0 <= accepted <= len(drafted) and emitted[:-1] == drafted[:accepted]):
        return math.inf
    if emitted[-1] in drafted[accepted : accepted + 1]:
        return math.inf
    return max(_lacking(given, request, step, token) for step, token in enumerate(emitted))


def _lacking(given: Inputs, request: int, step: int, token: int) -> float:
    """The largest share of a winner's ratio that `token` lacks in a race of its row's draw."""
    probs = _target(given, request, step).cpu()
    weights = pad(probs, (0, -probs.numel() % TILE)).view(-1, GROUP, GROUP)
    seed, position = given.sampling.seed[request : request + 1], given.positions[request : request + 1] + step
    noise = torch.as_tensor(exponentials(seed.cpu(), position.cpu(), 2 * GROUP + len(weights)))[0]
    tile, group, place = token // TILE, token // GROUP % GROUP, token % GROUP
    races = (
        (weights.sum((1, 2)), noise[2 * GROUP :], tile),
        (weights[tile].sum(1), noise[GROUP : 2 * GROUP], group),
        (weights[tile, group], noise[:GROUP], place),
    )
    ratios = [(sums / times, chosen) for sums, times, chosen in races]
    return max(1 - float(ratio[chosen] / ratio.max()) for ratio, chosen in ratios)


def _target(given: Inputs, request: int, step: int) -> Tensor:
    """The distribution of a request's row `step`: float64 [V]."""
    first = int((given.draft_lengths[:request] + 1).sum())
    return (given.target_logits[first + step].double() / given.sampling.temperature[request]).softmax(-1)
