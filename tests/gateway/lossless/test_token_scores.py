"""Scores of an answer, from the bytes that vLLM 0.32 sends, and from servers that cannot say them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from slipstream_core.errors import Incomparable
from slipstream_gateway.lossless.token_scores import LEAST, TOP, read_scores, scores_of
from slipstream_gateway.upstreams.base import Completion, Job, Piece, Usage


def _entry(logprob: float | None, rank: int) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": "x"}


def _body(rows: list[Any]) -> bytes:
    return json.dumps({"choices": [{"text": "y", "prompt_logprobs": rows}]}).encode()


ROWS = [
    None,
    {"5": _entry(-0.5, 1)},
    {"7": _entry(-3.0, 2), "9": _entry(-0.1, 1)},
    {"8": _entry(None, 1500), "9": _entry(-0.2, 1)},
]


def test_scores_are_those_of_the_answer_and_of_its_likely_neighbours() -> None:
    first, second = read_scores(_body(ROWS), 2, (7, 8))
    assert (first.logprob, first.rank, first.top) == (-3.0, 2, (-0.1, -3.0))
    assert (second.logprob, second.rank, second.top) == (LEAST, 1500, (-0.2, LEAST))


@pytest.mark.parametrize(
    "body",
    [b"no json", b"{}", b'{"choices": []}', b'{"choices": [{"text": "y"}]}', _body(ROWS[:3]), _body([*ROWS[:3], None])],
)
def test_answer_without_scores_is_incomparable(body: bytes) -> None:
    with pytest.raises(Incomparable):
        read_scores(body, 2, (7, 8))


async def test_request_asks_for_scores_and_for_as_little_else_as_can_be() -> None:
    asked: list[Job] = []

    async def complete(job: Job) -> Completion:
        asked.append(job)
        return Completion(body=Piece(_body(ROWS)), usage=Usage())

    headers = (("authorization", "Bearer client"),)
    server: Any = SimpleNamespace(complete=complete, scores=True)
    scores = await scores_of(server, (3, 5), (7, 8), model="m", headers=headers)
    assert len(scores) == 2
    [job] = asked
    assert (job.draft_length, job.headers, job.model) == (0, headers, "m")
    assert json.loads(job.request.raw) == {
        "model": "m",
        "prompt": [3, 5, 7, 8],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": TOP,
    }
    assert await scores_of(server, (3, 5), (), model="m") == ()
    assert len(asked) == 1
