"""An upper bound on the tokens that a server has generated, used until it reports its usage.

Token ids and log-probabilities are counted if the answer has them. Otherwise every byte of generated text counts as a
token, because no tokenizer produces more than one token per byte.
"""

from __future__ import annotations

import msgspec

from slipstream_gateway.upstreams.openai_answer import AnswerChoice, AnswerMessage
from slipstream_gateway.upstreams.sse import DONE, data_of_events


class _LogProbs(msgspec.Struct):
    """In a chat under `content` and `refusal`, in a text completion under `tokens`."""

    content: list[msgspec.Raw] | None = None
    refusal: list[msgspec.Raw] | None = None
    tokens: list[msgspec.Raw] | None = None


class _Choice(AnswerChoice):
    token_ids: list[msgspec.Raw] | None = None
    logprobs: _LogProbs | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None


class _Delta(msgspec.Struct):
    delta: str = ""
    logprobs: list[msgspec.Raw] | None = None


class _Response(msgspec.Struct):
    output: msgspec.Raw = msgspec.Raw(b"")


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_delta = msgspec.json.Decoder(_Delta).decode
_decode_response = msgspec.json.Decoder(_Response).decode


def most_tokens_of_events(block: bytes) -> int:
    """The bound for a block of whole events of a chat or a text completion. Fast, because it runs for every block of
    every stream."""
    most = 0
    for data in data_of_events(block):
        most += most_tokens_of_answer(data)
    return most


def most_tokens_of_answer(data: bytes) -> int:
    """The bound for one JSON object of a chat or a text completion: a whole answer, or an event's data."""
    if not data or data == DONE:
        return 0
    try:
        choices = _decode_answer(data).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return len(data)
    most = 0
    for choice in choices or ():
        most += _of_choice(choice)
    return most


def most_tokens_of_delta(data: bytes) -> int:
    """The bound for the data of a `response.<kind>.delta`."""
    try:
        event = _decode_delta(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return len(data)
    return len(event.logprobs or ()) or _bytes_of(event.delta)


def most_tokens_of_response(body: bytes) -> int:
    """The bound for a whole response. Its items have many forms, so all of their JSON counts."""
    return len(_decode_response(body).output)


def _of_choice(choice: _Choice) -> int:
    if choice.token_ids:
        return len(choice.token_ids)
    if choice.logprobs is not None and (scored := _scored(choice.logprobs)):
        return scored
    message = choice.delta or choice.message
    return _bytes_of(choice.text) + (0 if message is None else _of_message(message))


def _scored(scores: _LogProbs) -> int:
    return sum([len(part or ()) for part in (scores.content, scores.refusal, scores.tokens)])


def _of_message(message: AnswerMessage) -> int:
    most = _bytes_of(message.content)
    most += _bytes_of(message.reasoning_content or message.reasoning) + _bytes_of(message.refusal)
    for call in message.tool_calls or ():
        most += _bytes_of(call.function.name) + _bytes_of(call.function.arguments)
    return most


def _bytes_of(text: str | None) -> int:
    if not text:
        return 0
    return len(text) if text.isascii() else len(text.encode())
