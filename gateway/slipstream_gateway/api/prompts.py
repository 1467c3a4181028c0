"""The prompts of a text completion, and how much there is to read in prompts and messages."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_gateway.api.body import show
from slipstream_gateway.api.checks import MAX_TOKENS
from slipstream_gateway.errors import InvalidRequest
from slipstream_gateway.types import Message, PromptSize

Prompt = str | tuple[int, ...]


def parse_prompts(prompt: str | Sequence[str | int | list[int]] | None) -> Sequence[Prompt]:
    """Every prompt as text or token ids, one at least. Raises `InvalidRequest`."""
    if isinstance(prompt, str):
        return (prompt,)
    if prompt is None:
        raise InvalidRequest("Missing required parameter: 'prompt'.", param="prompt")
    if not prompt:
        raise InvalidRequest("Invalid 'prompt': expected text or token ids, got [].", param="prompt")
    if len({type(item) for item in prompt}) > 1:
        raise InvalidRequest("Invalid 'prompt': texts, token ids and lists of them cannot be mixed.", param="prompt")
    if isinstance(prompt[0], int):
        return (_token_ids([item for item in prompt if isinstance(item, int)]),)
    return [_token_ids(item) if isinstance(item, list) else str(item) for item in prompt]


def size_of_prompts(prompts: Sequence[Prompt]) -> PromptSize:
    """What a model reads of `prompts`."""
    return PromptSize(
        text_bytes=sum(_text_bytes(prompt) for prompt in prompts if isinstance(prompt, str)),
        token_ids=sum(len(prompt) for prompt in prompts if not isinstance(prompt, str)),
    )


def size_of_messages(messages: Sequence[Message]) -> PromptSize:
    """What a model reads of the texts of `messages`."""
    return PromptSize(text_bytes=sum([_text_bytes(message.content) for message in messages]))


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    if not ids:
        raise InvalidRequest("Invalid 'prompt': expected token ids, got [].", param="prompt")
    for token_id in ids:
        if not 0 <= token_id <= MAX_TOKENS:
            raise InvalidRequest(f"Invalid 'prompt': {show(token_id)} is not a token id.", param="prompt")
    return tuple(ids)
