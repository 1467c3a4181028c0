"""The likelihood of an answer's tokens under a target, by one request to an OpenAI-compatible server.

The answer is sent as the end of a prompt, and `prompt_logprobs` requests its log-probabilities; only the one token that
servers require is decoded. vLLM returns the raw distribution, before temperature and filters, also on a server that
speculates (read in the source and tried with vLLM 0.32.0).

https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from slipstream_core.errors import Incomparable
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.upstreams.base import Job, Upstream

UNSCORED = "unscored"
"""The cause of `Incomparable` for a server that does not return log-probabilities of a prompt."""
TOP = 8
"""The number of most likely tokens requested at each position; vLLM's default maximum is 20."""
LEAST = -100.0
"""The value that replaces a log-probability of minus infinity."""


class TokenScore(NamedTuple):
    """One token under the target: its natural log-probability, its rank (1: the most likely), and the log-probabilities
    of the most likely tokens at its position, highest first."""

    logprob: float
    rank: int
    top: tuple[float, ...]


class _Entry(msgspec.Struct):
    logprob: float | None = None
    rank: int | None = None


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


_decode = msgspec.json.Decoder(_Answer).decode


async def scores_of(
    upstream: Upstream,
    prompt_token_ids: Sequence[int],
    answer_token_ids: Sequence[int],
    *,
    model: str,
    headers: tuple[tuple[str, str], ...] = (),
) -> tuple[TokenScore, ...]:
    """The scores of the answer's tokens, by one request to `upstream`. Raises its errors, and `Incomparable` if it
    returns no scores."""
    if not upstream.scores:
        raise Incomparable(UNSCORED)
    if not answer_token_ids:
        return ()
    job = Job(
        request=_request(prompt_token_ids, answer_token_ids, model),
        model=model,
        draft_length=0,
        request_id="score",
        headers=headers,
    )
    completion = await upstream.complete(job)
    return read_scores(completion.body.data, len(prompt_token_ids), answer_token_ids)


def read_scores(body: bytes, prompt_tokens: int, answer_token_ids: Sequence[int]) -> tuple[TokenScore, ...]:
    """The scores in a server's answer. Raises `Incomparable` if they are missing."""
    try:
        choices = _decode(body).choices
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Incomparable(UNSCORED) from None
    rows = choices[0].prompt_logprobs if choices else None
    if rows is None or len(rows) != prompt_tokens + len(answer_token_ids):
        raise Incomparable(UNSCORED)
    return tuple(_score(row, token) for row, token in zip(rows[prompt_tokens:], answer_token_ids, strict=True))


def _score(row: dict[str, _Entry] | None, token: int) -> TokenScore:
    entry = row.get(str(token)) if row is not None else None
    if row is None or entry is None or entry.rank is None:
        raise Incomparable(UNSCORED)
    top = sorted((_logprob(other) for other in row.values() if other.rank is not None), reverse=True)
    return TokenScore(_logprob(entry), entry.rank, tuple(top[:TOP]))


def _logprob(entry: _Entry) -> float:
    return LEAST if entry.logprob is None else max(entry.logprob, LEAST)


def _request(prompt_token_ids: Sequence[int], answer_token_ids: Sequence[int], model: str) -> GenerationRequest:
    body = {
        "model": model,
        "prompt": [*prompt_token_ids, *answer_token_ids],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": TOP,
    }
    return GenerationRequest(
        endpoint=Endpoint.COMPLETION,
        model=model,
        max_tokens=1,
        temperature=0.0,
        features=frozenset({"prompt_logprobs"}),
        raw=msgspec.json.encode(body),
    )
