"""Evidence against an answer: e-values whatever the sampling parameters, and what they see."""

from __future__ import annotations

import math
import random

import pytest
from slipstream_gateway.lossless.score import Sampling, factors_of
from slipstream_gateway.lossless.token_scores import LEAST, TokenScore

from tests.gateway.lossless.likelihoods import CONTEXTS, answer, score, served

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.5),
    Sampling(temperature=1.6),
    Sampling(top_p=0.8),
    Sampling(top_k=3),
    Sampling(temperature=0.7, top_p=0.9, top_k=20),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_mean_of_each_factor_is_one_at_most_for_every_context(sampling: Sampling) -> None:
    for context in range(CONTEXTS):
        means = [0.0] * 9
        for rank, probability in enumerate(served(context, sampling)):
            factors = factors_of([score(context, rank)], sampling)
            for index, log in enumerate((*factors.far, *factors.tail, *factors.sure)):
                means[index] += probability * math.exp(log)
        assert max(means) <= 1.0 + 1e-9


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_evidence_of_a_thousand_plain_answers_stays_below_what_chance_allows(sampling: Sampling) -> None:
    """Ville: evidence of log(1e5) comes once in 1e5 answers, so that none of 300 has it but by an error."""
    rng = random.Random(2)
    found = [answer(rng, sampling, tokens=30) for _ in range(300)]
    assert max(max(one.far_evidence, one.shift_evidence) for one in found) < math.log(1e5)


def test_garbage_stands_out_within_one_answer() -> None:
    rng = random.Random(3)
    found = [answer(rng, tokens=40, garbage=True).far_evidence for _ in range(50)]
    assert min(found) > math.log(1e3)


def test_token_of_no_probability_counts_for_much_and_not_for_all() -> None:
    impossible = TokenScore(LEAST, 350, (-0.1, -3.0))
    found = factors_of([impossible], Sampling(temperature=0.1))
    assert 10.0 < found.far_evidence < 20.0
    assert math.isfinite(found.shift_evidence)


def test_empty_answer_says_nothing() -> None:
    nothing = factors_of([], Sampling())
    assert nothing.far_evidence == nothing.shift_evidence == 0.0
