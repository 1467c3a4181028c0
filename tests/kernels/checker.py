"""Whether what a request got is what the rule gives in float64: plain decoding's token in each row, up to the first one
that is not the drafted token.

Float32 may choose another token where two are within rounding of each other, or where a filter cuts within rounding of
a token, and nowhere else: there any answer is right, and counted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tests.kernels.batches import Answer, Request
from tests.kernels.oracle import TOLERANCE, Floats, distribution, draw, mass_above


class Decision(NamedTuple):
    """The tokens of a step in float64, None if the request fails. `close`: one of them was within rounding."""

    tokens: list[int] | None
    close: bool


def check(request: Request, answer: Answer | None) -> bool:
    """Whether the exemption was needed; fails where the answer is wrong."""
    decision = decide(request)
    got = None if answer is None else answer.tokens
    assert got == decision.tokens or decision.close, (got, decision.tokens)
    if answer is not None:
        assert all(np.isfinite(request.scores(step)[token]) for step, token in enumerate(answer.tokens))
    return got != decision.tokens


def decide(request: Request) -> Decision:
    """The step of one request by the definition."""
    tokens: list[int] = []
    close = False
    for step in range(len(request.drafts) + 1):
        target = request.target(step)
        if target is None:
            return Decision(None, close)
        token, within_rounding = draw(target, request.seed, request.position + step)
        close |= within_rounding or _edge(request.scores(step), request)
        tokens.append(token)
        if token not in request.drafts[step : step + 1]:
            break
    return Decision(tokens, close)


def _edge(scores: Floats, request: Request) -> bool:
    """Whether a filter cuts within rounding of a token."""
    rules = request.rules
    if rules.temperature == 0:
        return False
    edge = False
    if rules.top_p < 1:
        before_top_p = distribution(scores, type(rules)(temperature=rules.temperature, top_k=rules.top_k))
        edge = bool((np.abs(mass_above(scores, before_top_p) - rules.top_p)[before_top_p > 0] < TOLERANCE).any())
    if rules.min_p:
        cut = scores.max() + rules.temperature * math.log(rules.min_p)
        edge |= bool((np.abs(scores - cut) < TOLERANCE * max(1.0, abs(cut))).any())
    return edge
