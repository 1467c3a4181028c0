"""What a check's answers say of an engine, from answers and scores alone."""

from __future__ import annotations

import math
import random

import pytest
from slipstream_gateway.lossless.answers import WholeAnswer, first_difference
from slipstream_gateway.lossless.findings import (
    TIE_NATS,
    GreedyPair,
    ProbeAnswer,
    Result,
    judge_draft_length,
    judge_greedy,
    judge_sampled,
)
from slipstream_gateway.lossless.probes import SAMPLING
from slipstream_gateway.lossless.token_scores import TokenScore
from slipstream_gateway.upstreams.base import Usage

from tests.gateway.lossless.likelihoods import CONTEXTS, VOCABULARY, draw, score

Scores = list[tuple[TokenScore, ...]]


def _answer(*token_ids: int, text: str = "", drafted: int = 0) -> ProbeAnswer:
    answer = WholeAnswer(text=text or " ".join(map(str, token_ids)), token_ids=token_ids)
    return ProbeAnswer(answer, Usage(drafted=drafted))


EMPTY = ProbeAnswer(WholeAnswer(text=""), Usage())


def _plain(rng: random.Random, answers: int = 16, tokens: int = 32) -> Scores:
    def one() -> TokenScore:
        context = rng.randrange(CONTEXTS)
        return score(context, draw(context, rng, SAMPLING))

    return [tuple(one() for _ in range(tokens)) for _ in range(answers)]


def _garbage(rng: random.Random, answers: int = 16, tokens: int = 32) -> Scores:
    return [
        tuple(score(rng.randrange(CONTEXTS), rng.randrange(VOCABULARY)) for _ in range(tokens)) for _ in range(answers)
    ]


def test_equal_greedy_answers_pass() -> None:
    pairs = [GreedyPair(_answer(1, 2, 3), _answer(1, 2, 3)), GreedyPair(_answer(4), _answer(4))]
    assert judge_greedy(pairs, counted=False).result is Result.PASS


def test_one_difference_that_is_no_tie_fails() -> None:
    good = GreedyPair(_answer(1, 2), _answer(1, 2))
    bad = GreedyPair(_answer(1, 9), _answer(1, 2), tie=TIE_NATS + 0.01)
    found = judge_greedy([good, bad, good], counted=False)
    assert found.result is Result.FAIL
    assert found.detail == "1 of 3 greedy answers differ from the plain ones"


def test_tie_may_go_either_way_and_is_told() -> None:
    found = judge_greedy([GreedyPair(_answer(1, 9), _answer(1, 2), tie=TIE_NATS)], counted=False)
    assert found.result is Result.PASS
    assert "ties" in found.detail


def test_difference_whose_likelihood_nobody_knows_fails() -> None:
    assert judge_greedy([GreedyPair(_answer(1, 9), _answer(1, 2))], counted=False).result is Result.FAIL


@pytest.mark.parametrize("pairs", [[], [GreedyPair(EMPTY, EMPTY)]])
def test_no_greedy_answer_is_no_data(pairs: list[GreedyPair]) -> None:
    assert judge_greedy(pairs, counted=False).result is Result.NO_DATA


def _index(one: WholeAnswer, other: WholeAnswer) -> int | None:
    found = first_difference(one, other)
    return None if found is None else found.index


def test_texts_are_compared_where_one_server_gives_no_ids() -> None:
    with_ids, without = _answer(7, 8, text="same text").answer, WholeAnswer(text="same text")
    assert _index(with_ids, without) is None
    assert _index(WholeAnswer(text="same"), WholeAnswer(text="sane")) == 2
    assert _index(_answer(1, 2).answer, _answer(1, 2, 3).answer) == 2


def test_sampled_answers_of_the_target_pass_again_and_again() -> None:
    rng = random.Random(1)
    results = {judge_sampled(_plain(rng), _plain(rng), drafted=None).result for _ in range(100)}
    assert results == {Result.PASS}


def test_garbage_fails_and_the_means_are_told() -> None:
    rng = random.Random(2)
    for _ in range(50):
        found = judge_sampled(_garbage(rng), _plain(rng), drafted=None)
        assert found.result is Result.FAIL
    assert found.evidence is not None
    assert found.evidence > 100.0
    assert "mean log-probability -" in found.detail


def test_half_garbage_fails() -> None:
    rng = random.Random(3)
    mixed = _plain(rng, 8) + _garbage(rng, 8)
    assert judge_sampled(mixed, _plain(rng), drafted=None).result is Result.FAIL


def test_one_answer_of_garbage_fails_at_evidence_of_a_million() -> None:
    rng = random.Random(6)
    found = judge_sampled(_plain(rng, 15) + _garbage(rng, 1, 24), _plain(rng), drafted=None)
    assert found.evidence is not None
    assert math.log(1e6) < found.evidence < math.log(2e6)
    assert found.result is Result.FAIL


def test_scores_that_find_plain_answers_unlikely_too_say_nothing() -> None:
    """Another model's scores, or a sampler with settings that nobody told."""
    rng = random.Random(4)
    found = judge_sampled(_garbage(rng), _garbage(rng), drafted=None)
    assert found.result is Result.NO_DATA
    assert found.detail.startswith("plain answers are unlikely")


@pytest.mark.parametrize("speculative", [[], [(), ()]])
def test_nothing_scored_is_no_data(speculative: Scores) -> None:
    assert judge_sampled(speculative, _plain(random.Random(5)), drafted=None).result is Result.NO_DATA


@pytest.mark.parametrize(
    ("speculative", "plain", "result"),
    [
        ((4, 2), (0, 0), Result.PASS),
        ((0, 2), (0, 0), Result.FAIL),  # the copying prompt is the first
        ((4, 2), (0, 1), Result.FAIL),
        ((0, 0), (0, 1), Result.FAIL),
        ((0, 0), (0, 0), Result.NO_DATA),
    ],
)
def test_draft_lengths_are_followed(speculative: tuple[int, int], plain: tuple[int, int], result: Result) -> None:
    pairs = [
        GreedyPair(_answer(1, drafted=drafted), _answer(1, drafted=none))
        for drafted, none in zip(speculative, plain, strict=True)
    ]
    assert judge_draft_length(pairs).result is result


def test_greedy_answers_without_drafts_say_nothing_where_drafts_are_counted() -> None:
    plain, drafted = _answer(1, 2), _answer(1, 2, drafted=4)
    assert judge_greedy([GreedyPair(plain, plain)], counted=True).result is Result.NO_DATA
    assert judge_greedy([GreedyPair(plain, plain), GreedyPair(drafted, plain)], counted=True).result is Result.PASS
    different = judge_greedy([GreedyPair(_answer(9), plain)], counted=True)
    assert different.result is Result.FAIL  # a difference is one, whatever was drafted


@pytest.mark.parametrize(("drafted", "result"), [(0, Result.NO_DATA), (1, Result.PASS), (None, Result.PASS)])
def test_sampled_answers_without_drafts_say_nothing(drafted: int | None, result: Result) -> None:
    rng = random.Random(6)
    assert judge_sampled(_plain(rng), _plain(rng), drafted=drafted).result is result
    assert judge_sampled(_garbage(rng), _plain(rng), drafted=drafted).result is Result.FAIL
