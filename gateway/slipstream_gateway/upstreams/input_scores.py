"""The likelihood of an answer's tokens by SGLang's own `/generate`, whose log-probabilities of a prompt have token ids.

The distribution is the raw one: a greedy request has temperature 1 there. Each row has the token's log-probability and
the most likely tokens, but no rank. A token below the reported ones gets the rank that keeps the evidence of
`request.likelihood` valid: with K reported tokens, a vocabulary of at most V, and weights 1 / (j · (j + 1)) by rank j,
the ranks below K have the weight 1 / (K + 1) together. Shared equally by V - K tokens, that is the weight of the rank
sqrt((K + 1) · (V - K)).

https://docs.sglang.io/basic_usage/native_api.html
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from slipstream_core.errors import Incomparable

from slipstream_gateway.upstreams.base import TokenScore
from slipstream_gateway.upstreams.scores import LEAST, UNSCORED

SCORING_PATH = "generate"
REPORTED = 32
"""The number of most likely tokens requested at each position."""
_LARGEST_VOCABULARY = 2**18
RANK_BELOW = math.ceil(math.sqrt((REPORTED + 1) * (_LARGEST_VOCABULARY - REPORTED)))

_Row = tuple[float | None, int, str | None]  # log-probability, token id, text


class _Meta(msgspec.Struct):
    input_token_logprobs: list[_Row] = []
    input_top_logprobs: list[list[_Row] | None] = []


class _Answer(msgspec.Struct):
    meta_info: _Meta


_decode = msgspec.json.Decoder(_Answer).decode


async def score_by_input(
    post: Callable[[bytes], Awaitable[bytes]], prompt_token_ids: Sequence[int], answer_token_ids: Sequence[int]
) -> tuple[TokenScore, ...]:
    """The scores of the answer's tokens, by one request to `SCORING_PATH`, which `post` sends; one token is decoded.
    Raises the errors of `post`, and `Incomparable` if the server returns no scores."""
    if not answer_token_ids:
        return ()
    body = msgspec.json.encode(
        {
            "input_ids": [*prompt_token_ids, *answer_token_ids],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": max(len(prompt_token_ids) - 1, 0),
            "top_logprobs_num": REPORTED,
        }
    )
    return read_input_scores(await post(body), answer_token_ids)


def read_input_scores(body: bytes, answer_token_ids: Sequence[int]) -> tuple[TokenScore, ...]:
    """The scores in a server's answer. Raises `Incomparable` if they are missing."""
    try:
        meta = _decode(body).meta_info
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Incomparable(UNSCORED) from None
    count = len(answer_token_ids)
    tokens, tops = meta.input_token_logprobs[-count:], meta.input_top_logprobs[-count:]
    if len(tokens) != count or len(tops) != count or [token for _, token, _ in tokens] != list(answer_token_ids):
        raise Incomparable(UNSCORED)
    return tuple(_score(row, top) for row, top in zip(tokens, tops, strict=True))


def _score(row: _Row, top: list[_Row] | None) -> TokenScore:
    logprob, token, _ = row
    if logprob is None or not top:
        raise Incomparable(UNSCORED)
    ids = [other for _, other, _ in top]
    rank = ids.index(token) + 1 if token in ids else RANK_BELOW
    return TokenScore(max(logprob, LEAST), rank, tuple(LEAST if p is None else max(p, LEAST) for p, _, _ in top))
