"""Log-probabilities in the forms of chat and text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from slipstream_engine.contract.types import TokenLogprob


class TokenTexts(Protocol):
    def token_text(self, token_id: int) -> str: ...

    def token_utf8(self, token_id: int) -> bytes: ...


class _Entry(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class _Position(_Entry, frozen=True):
    top_logprobs: list[_Entry]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[_Position]


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`text_offset` is where each token begins in the text of the answer."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


def chat_logprobs(tokens: Sequence[TokenLogprob], texts: TokenTexts) -> ChatLogprobs:
    def entry(token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        return texts.token_text(token_id), logprob, list(texts.token_utf8(token_id))

    return ChatLogprobs(
        [
            _Position(*entry(token.token_id, token.logprob), [_Entry(*entry(*each)) for each in token.best])
            for token in tokens
        ]
    )


def completion_logprobs(tokens: Sequence[TokenLogprob], texts: TokenTexts, offset: int) -> CompletionLogprobs:
    """The log-probabilities of `tokens` that begin at the character `offset` of the answer. The token of the answer is
    among the best ones, as in OpenAI's reference."""
    names = [texts.token_text(token.token_id) for token in tokens]
    offsets = []
    for name in names:
        offsets.append(offset)
        offset += len(name)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[token.logprob for token in tokens],
        tokens=names,
        top_logprobs=[
            {name: token.logprob} | {texts.token_text(token_id): logprob for token_id, logprob in token.best}
            for name, token in zip(names, tokens, strict=True)
        ],
    )
