"""Scores of an answer from SGLang's own API, which has no ranks."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from slipstream_core.errors import Incomparable
from slipstream_gateway.request.likelihood import NOTHING, Sampling, factors_of
from slipstream_gateway.upstreams.base import TokenScore
from slipstream_gateway.upstreams.input_scores import RANK_BELOW, REPORTED, read_input_scores, score_by_input
from slipstream_gateway.upstreams.scores import LEAST


def _body(tokens: list[Any], tops: list[Any]) -> bytes:
    return json.dumps({"meta_info": {"input_token_logprobs": tokens, "input_top_logprobs": tops}}).encode()


TOKENS = [[None, 5, None], [-3.0, 7, None], [-9.0, 8, None]]
TOPS = [None, [[-0.1, 9, None], [-3.0, 7, None]], [[-0.2, 9, None], [None, 3, None]]]


def test_scores_are_those_of_the_answer_and_of_its_likely_neighbours() -> None:
    first, second = read_input_scores(_body(TOKENS, TOPS), (7, 8))
    assert first == TokenScore(-3.0, 2, (-0.1, -3.0))
    assert second == TokenScore(-9.0, RANK_BELOW, (-0.2, LEAST))


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"{}",
        b'{"meta_info": {}}',
        _body(TOKENS[:2], TOPS),
        _body(TOKENS, TOPS[:1]),
        _body([TOKENS[0], TOKENS[2], TOKENS[1]], TOPS),
        _body([TOKENS[0], [None, 7, None], TOKENS[2]], TOPS),
        _body(TOKENS, [None, None, TOPS[2]]),
        _body([["x", 5, None], *TOKENS[1:]], TOPS),
    ],
)
def test_answer_without_scores_is_incomparable(body: bytes) -> None:
    with pytest.raises(Incomparable):
        read_input_scores(body, (7, 8))


async def test_request_asks_for_the_rows_of_the_answer() -> None:
    asked: list[Any] = []

    async def post(body: bytes) -> bytes:
        asked.append(json.loads(body))
        return _body(TOKENS, TOPS)

    assert len(await score_by_input(post, (3, 5), (7, 8))) == 2
    assert asked == [
        {
            "input_ids": [3, 5, 7, 8],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 1,
            "top_logprobs_num": REPORTED,
        }
    ]
    assert await score_by_input(post, (3, 5), ()) == ()
    assert len(asked) == 1


@pytest.mark.parametrize("vocabulary", [33, 500, 32_000, 2**18])
def test_unreported_tokens_share_the_weight_of_the_ranks_below(vocabulary: int) -> None:
    """Weights of more than 1 in all would make false alarms."""
    reported = sum(1.0 / (rank * (rank + 1)) for rank in range(1, REPORTED + 1))
    below = (vocabulary - REPORTED) / (RANK_BELOW * (RANK_BELOW + 1.0))
    assert reported + below <= 1.0


@pytest.mark.parametrize("decay", [0.3, 1.0, 1.5])
def test_answers_of_the_target_have_no_evidence(decay: float) -> None:
    """20,000 tokens of a distribution with a long tail, scored without the ranks below the reported ones."""
    weights = [(rank + 1.0) ** -decay for rank in range(4000)]
    total = math.fsum(weights)
    logprobs = [math.log(weight / total) for weight in weights]
    top = tuple(logprobs[:REPORTED])
    drawn = random.Random(1).choices(range(4000), weights, k=20_000)
    ranks = [index + 1 if index < REPORTED else RANK_BELOW for index in drawn]
    scores = [TokenScore(logprobs[index], rank, top) for index, rank in zip(drawn, ranks, strict=True)]
    found = NOTHING.plus(factors_of(scores, Sampling()))
    assert max(found.far_evidence, found.shift_evidence) < 5.0
