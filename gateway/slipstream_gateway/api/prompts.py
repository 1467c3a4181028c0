"""The prompts of a text completion: one or several, as text or as token ids."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from slipstream_core.errors import InvalidRequest

from slipstream_gateway.api.body import show
from slipstream_gateway.api.checks import MAX_TOKENS
from slipstream_gateway.api.prompt_size import ALL_TEXT, NonText

Prompt = str | tuple[int, ...]


def parse_prompts(prompt: str | Sequence[str | int | list[int]] | None) -> Sequence[Prompt]:
    """Parses every prompt as text or token ids, at least one. Raises `InvalidRequest`."""
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


def token_ids_of(prompts: Sequence[Prompt], raw: msgspec.Raw) -> NonText:
    """The token ids among `prompts`, whose JSON is `raw`."""
    if isinstance(prompts[0], str):
        return ALL_TEXT
    return NonText(json_bytes=len(memoryview(raw)), token_ids=sum(map(len, prompts)))


def _token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    if not ids:
        raise InvalidRequest("Invalid 'prompt': expected token ids, got [].", param="prompt")
    for token_id in ids:
        if not 0 <= token_id <= MAX_TOKENS:
            raise InvalidRequest(f"Invalid 'prompt': {show(token_id)} is not a token id.", param="prompt")
    return tuple(ids)
