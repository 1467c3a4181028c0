"""A made-up target whose distributions are known, its plain answers, and what wrong engines make of them."""

from __future__ import annotations

import math
import random
from functools import cache

from slipstream_gateway.lossless.score import Factors, Sampling, ScoredPair, factors_of
from slipstream_gateway.lossless.token_scores import TOP, TokenScore

VOCABULARY = 200
PLAIN = Sampling()
CONTEXTS = 64


def _context(rng: random.Random) -> tuple[float, ...]:
    sharpness = rng.choice((0.4, 1.0, 2.0, 5.0))
    logits = sorted((sharpness * rng.gauss(0.0, 1.0) for _ in range(VOCABULARY)), reverse=True)
    log_sum = math.log(sum(map(math.exp, logits)))
    return tuple(logit - log_sum for logit in logits)


BANK = [_context(random.Random(seed)) for seed in range(CONTEXTS)]
"""Log-probabilities by rank: from nearly certain to nearly flat, as positions of a text are."""


@cache
def served(context: int, sampling: Sampling) -> tuple[float, ...]:
    """The probabilities by rank that a server samples by: temperature, then top-k, then top-p, as vLLM has it."""
    weights = [math.exp(logprob / sampling.temperature) for logprob in BANK[context]]
    if sampling.top_k:
        weights = weights[: sampling.top_k]
    total, kept, count = sum(weights), 0.0, 0
    while count < len(weights) and kept < sampling.top_p * total:
        kept += weights[count]
        count += 1
    return tuple(weight / kept for weight in weights[:count])


def draw(context: int, rng: random.Random, sampling: Sampling = PLAIN) -> int:
    """The rank (from 0) of a token."""
    weights = served(context, sampling)
    return rng.choices(range(len(weights)), weights)[0]


def score(context: int, at: int) -> TokenScore:
    return TokenScore(BANK[context][at], at + 1, BANK[context][:TOP])


def answer(
    rng: random.Random,
    sampling: Sampling = PLAIN,
    *,
    tokens: int = 60,
    wrong_every: int = 0,
    wrong_rank: int = 5,
    garbage: bool = False,
) -> Factors:
    """An answer's evidence. `wrong_every`: one of so many tokens is the one of rank `wrong_rank`, whatever was drawn;
    `garbage`: any token of the vocabulary is as likely as any other."""
    scores = []
    for _ in range(tokens):
        context = rng.randrange(CONTEXTS)
        at = rng.randrange(VOCABULARY) if garbage else draw(context, rng, sampling)
        if wrong_every and rng.randrange(wrong_every) == 0:
            at = wrong_rank - 1
        scores.append(score(context, at))
    return factors_of(scores, sampling)


def pair(speculative: Factors, plain: Factors, *, is_modelled: bool = True) -> ScoredPair:
    return ScoredPair(speculative=speculative, plain=plain, is_modelled=is_modelled)
