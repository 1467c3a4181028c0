"""The prompts of a text completion: one or several, as text or as token ids.

A prompt's size counts every field by its bytes, except token ids and media: the gateway does not know which fields a
template or a server renders. Media are counted by number: the tokens of an image are unrelated to its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from slipstream_core.errors import InvalidRequest
from slipstream_core.types import PromptSize

from slipstream_gateway.api.body import WireItem, WireMessage, show
from slipstream_gateway.api.features import MAX_TOKENS

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


_MEDIA = frozenset(
    {
        "audio_url",
        "computer_screenshot",
        "image_embeds",
        "image_url",
        "input_audio",
        "input_image",
        "input_video",
        "video_url",
    }
)
_NULL = msgspec.Raw(b"null")


class _Holder(msgspec.Struct):
    """A message or an item of a response, which may contain media."""

    content: msgspec.Raw = _NULL
    output: msgspec.Raw = _NULL


class _Part(msgspec.Struct):
    type: str | None = None


_decode_holders = msgspec.json.Decoder(list[_Holder]).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_part = msgspec.json.Decoder(_Part).decode


class NonText(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a body that are not counted by bytes, and their size in bytes of JSON."""

    json_bytes: int = 0
    token_ids: int = 0
    media: int = 0


ALL_TEXT = NonText()


def prompt_size(raw: bytes, non_text: NonText) -> PromptSize:
    """The size of the body `raw`."""
    return PromptSize(text_bytes=len(raw) - non_text.json_bytes, token_ids=non_text.token_ids, media=non_text.media)


def media_of_messages(messages: Sequence[WireMessage], raw: msgspec.Raw) -> NonText:
    """The media among the parts of chat messages, whose JSON is `raw`."""
    kinds = {part.type for message in messages if isinstance(message.content, list) for part in message.content}
    return ALL_TEXT if kinds.isdisjoint(_MEDIA) else _media_in(raw)


def media_of_items(items: Sequence[WireItem], raw: msgspec.Raw) -> NonText:
    """The media among the parts of a response's items and in the results of its tools. `raw` is the items' JSON."""
    has_parts = any(isinstance(value, list | dict) for item in items for value in (item.content, item.output))
    return _media_in(raw) if has_parts else ALL_TEXT


def _media_in(raw: msgspec.Raw) -> NonText:
    """Sizes are those of the bytes as received, because re-encoded JSON may be longer."""
    holders = _decode_holders(raw)
    parts = [part for holder in holders for value in (holder.content, holder.output) for part in _parts(value)]
    media = [len(memoryview(part)) for part in parts if _kind(part) in _MEDIA]
    return NonText(json_bytes=sum(media), media=len(media))


def _parts(raw: msgspec.Raw) -> Sequence[msgspec.Raw]:
    return _decode_parts(raw) if bytes(memoryview(raw)[:1]) == b"[" else (raw,)


def _kind(part: msgspec.Raw) -> str | None:
    try:
        return _decode_part(part).type
    except msgspec.DecodeError:
        return None  # not an object: a string, or null
