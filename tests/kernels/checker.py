"""Whether what a request got is what the algorithm gives in float64, decision by decision.

Float32 may decide otherwise where a random number lies within rounding of a boundary, and nowhere else: there either
answer is right, and counted. The standard rule is Leviathan et al. (2211.17192), algorithm 1; the block rule Sun et
al. (2403.10444), algorithm 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from slipstream_kernels import Purpose, uniform

from tests.kernels.batches import Answer, Request
from tests.kernels.oracle import Floats, adjusted, distribution, one_hot, softmax

TOLERANCE = 1e-5
"""How far from a boundary, as a share of all probability, float32 may mistake the side."""


class Decision(NamedTuple):
    """What a step comes to in float64: how many drafts stand, -1 if the request fails, and what the last token may
    be. `close`: a decision before the last token was within rounding of its boundary."""

    accepted: int
    token: int
    within_rounding: set[int]
    close: bool


def check(request: Request, answer: Answer | None, *, block: bool = False) -> bool:
    """Whether the exemption was needed; fails where the answer is wrong."""
    decision = decide(request, block=block)
    if decision.accepted < 0:
        assert answer is None or decision.close, "a request without a distribution has to fail"
        return answer is not None
    expected = [*request.drafts[: decision.accepted], decision.token]
    got = None if answer is None else answer.tokens
    right = got == expected
    if not right and not decision.close:
        assert got is not None, f"failed where {expected} was to come"
        assert got[:-1] == expected[:-1], (got, expected)
        assert got[-1] in decision.within_rounding, (got, expected)
    if answer is not None:
        _check_report(request, answer)
    return not right


def decide(request: Request, *, block: bool = False) -> Decision:
    """The step of one request by the definition."""
    if block and request.rules.temperature > 0:
        return _block(request)
    close = False
    for step, drafted in enumerate(request.drafts):
        p, edge = _target(request, step)
        if p is None:
            return Decision(-1, -1, set(), close)
        q = _draft(request, step)
        gap = _at(p, drafted) - _random(request, step, Purpose.ACCEPT) * _at(q, drafted)
        close |= edge or (abs(gap) < TOLERANCE and _at(p, drafted) > 0 and request.rules.temperature > 0)
        if gap <= 0:
            return _last(request, step, np.maximum(p - q, 0), p, Purpose.RESIDUAL, close)
    return _bonus(request, close)


def _block(request: Request) -> Decision:
    rows = [_target(request, step) for step in range(len(request.drafts) + 1)]
    if any(p is None for p, _ in rows):
        return Decision(-1, -1, set(), any(edge for _, edge in rows))
    p = [row for row, _ in rows if row is not None]
    q = [_draft(request, step) for step in range(len(request.drafts))]
    close, standing, accepted = any(edge for _, edge in rows), [1.0], 0
    for i, drafted in enumerate(request.drafts):
        ahead, against = standing[-1] * _at(p[i], drafted), _at(q[i], drafted)
        standing.append(min(1.0, ahead / against) if against else float(ahead > 0))
        chance, exact = standing[-1], True
        if i + 1 < len(request.drafts):
            left = float(np.maximum(standing[-1] * p[i + 1] - q[i + 1], 0).sum())
            exact = left + 1 - standing[-1] > TOLERANCE
            chance = left / (left + 1 - standing[-1]) if exact else 0.0
        gap = chance - _random(request, i, int(Purpose.ACCEPT) + len(Purpose) * i)
        close |= not exact or abs(gap) < TOLERANCE
        accepted = i + 1 if gap > 0 else accepted
    if accepted == len(request.drafts):
        return _bonus(request, close)
    weights = np.maximum(standing[accepted] * p[accepted] - q[accepted], 0)
    return _last(request, accepted, weights, p[accepted], Purpose.RESIDUAL, close)


def _bonus(request: Request, close: bool) -> Decision:
    step = len(request.drafts)
    p, edge = _target(request, step)
    if p is None:
        return Decision(-1, -1, set(), close)
    return _last(request, step, p, p, Purpose.TARGET, close or edge)


def _last(request: Request, step: int, weights: Floats, p: Floats, purpose: Purpose, close: bool) -> Decision:
    """The token drawn from `weights`, from `p` if none is left; tokens within rounding of it."""
    mass = weights.sum()
    close |= bool(0 < mass < TOLERANCE)
    if mass == 0:
        weights, mass = p, p.sum()
    cdf = weights.cumsum() / mass
    number, slack = _random(request, step, purpose), TOLERANCE / mass
    near = (weights > 0) & (cdf - weights / mass <= number + slack) & (number < cdf + slack)
    token = int(np.searchsorted(cdf, number * cdf[-1], side="right"))
    return Decision(step, token, set(near.nonzero()[0].tolist()), close)


def _target(request: Request, step: int) -> tuple[Floats | None, bool]:
    """The distribution of a row, None if it has none, and whether a filter cuts within rounding of a token."""
    scores = scores_of(request, step)
    if np.isnan(scores).any() or not np.isfinite(scores.max()):
        return None, False
    return distribution(scores, request.rules), _edge(scores, request)


def scores_of(request: Request, step: int) -> Floats:
    """The adjusted logits of a row, float32 [V]."""
    allowed = None if request.allowed is None else request.allowed[step].numpy()
    written = (*request.written, *request.drafts[:step])
    return adjusted(request.logits[step].float().numpy(), request.rules, written, allowed)


def _edge(scores: Floats, request: Request) -> bool:
    rules = request.rules
    if rules.temperature == 0:
        return False
    before_top_p = distribution(scores, type(rules)(temperature=rules.temperature, top_k=rules.top_k))
    order = np.unique(scores[before_top_p > 0])
    mass = np.array([before_top_p[scores > score].sum() for score in order])
    edge = rules.top_p < 1 and bool((np.abs(mass - rules.top_p) < TOLERANCE).any())
    if rules.min_p:
        cut = scores.max() + rules.temperature * math.log(rules.min_p)
        edge |= bool((np.abs(scores - cut) < TOLERANCE * max(1.0, abs(cut))).any())
    return edge


def _draft(request: Request, step: int) -> Floats:
    drafted, vocabulary = request.drafts[step], request.vocabulary
    certain = one_hot(drafted, vocabulary) if 0 <= drafted < vocabulary else np.zeros(vocabulary)
    if request.draft_logits is None:
        return certain
    scores = request.draft_logits[step].float().numpy()
    if np.isnan(scores).any() or not np.isfinite(scores.max()):
        return certain
    q = np.zeros(max(vocabulary, len(scores)))
    q[: len(scores)] = softmax(scores, 1.0)
    return q[:vocabulary]


def _at(probabilities: Floats, token: int) -> float:
    return float(probabilities[token]) if 0 <= token < len(probabilities) else 0.0


def _random(request: Request, step: int, purpose: int) -> float:
    return float(uniform(torch.tensor(request.seed), torch.tensor(request.position + step), purpose))


def _check_report(request: Request, answer: Answer) -> None:
    """Log-probabilities and margins, of the tokens that did come."""
    for step, token in enumerate(answer.tokens):
        scores = scores_of(request, step)
        assert np.isfinite(scores[token])
        expected = math.log(softmax(scores, request.rules.temperature)[token])
        assert answer.logprobs[step] == pytest.approx(expected, rel=1e-5, abs=2e-5)
        if answer.margins is not None:
            best = np.sort(scores)[::-1]
            margin = best[0] - best[1] if len(best) > 1 and np.isfinite(best[1]) else math.inf
            assert answer.margins[step] == pytest.approx(float(margin), rel=1e-6)
