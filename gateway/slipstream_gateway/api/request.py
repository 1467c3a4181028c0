"""The part of a generation request that all endpoints share: the headers that override the gateway's own decisions,
the client's deadline, the size of its prompt, and the fields of its body.

A prompt's size counts every field by its bytes, except token ids and media: the gateway does not know which fields a
template or a server renders. Media are counted by number: the tokens of an image are unrelated to its bytes.

Small bodies are parsed on the event loop and larger ones in a thread, so that other requests are not delayed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from slipstream_core.errors import InvalidRequest, shorten
from slipstream_core.manifest.model_pair import MAX_DRAFT_TOKENS
from slipstream_core.types import Endpoint, GenerationRequest, Message, Mode, PromptSize

from slipstream_gateway.api.body import WireItem, WireMessage, WireSampling, missing, show
from slipstream_gateway.api.features import (
    FOR_SAMPLING,
    RANDOM_SEED,
    is_structured,
    seed_of,
    stop_strings,
    temperature_of,
    top_k_of,
    top_p_of,
)
from slipstream_gateway.api.restricted import restricted_uses, state_ids
from slipstream_gateway.api.turns import Turns


class RequestOverrides(msgspec.Struct, frozen=True, gc=False):
    """The header values as received: `x-slipstream-mode`, `x-slipstream-draft-length`, `x-slipstream-learn` and
    `x-slipstream-capture`."""

    mode: str | None = None
    draft_length: str | None = None
    learn: str | None = None
    capture: str | None = None


NO_OVERRIDES = RequestOverrides()
_MODES: Mapping[str, Mode] = {str(mode): mode for mode in Mode}


def mode_of(value: str | None) -> Mode:
    """The mode in the header's value. Raises `InvalidRequest`."""
    if value is None:
        return Mode.AUTO
    mode = _MODES.get(value.lower())
    if mode is None:
        message = f"Invalid header 'x-slipstream-mode': expected {', '.join(_MODES)}, got {show(value)}."
        raise InvalidRequest(message, param="x-slipstream-mode")
    return mode


def draft_length_of(value: str | None) -> int | None:
    """The draft length in the header's value. Raises `InvalidRequest`."""
    if value is None:
        return None
    if len(value) > 2 or not (value.isascii() and value.isdigit()) or not 1 <= int(value) <= MAX_DRAFT_TOKENS:
        message = f"Invalid header 'x-slipstream-draft-length': expected 1 to {MAX_DRAFT_TOKENS}, got {show(value)}."
        raise InvalidRequest(message, param="x-slipstream-draft-length")
    return int(value)


def learn_of(value: str | None) -> bool:
    """Whether the outcome may be learned from, by the header's value. Raises `InvalidRequest`."""
    return _either("x-slipstream-learn", value, "on", "off") is not False


def capture_of(value: str | None) -> bool | None:
    """Whether the answer may be kept for training, None without the header. Raises `InvalidRequest`."""
    return _either("x-slipstream-capture", value, "allow", "deny")


def _either(header: str, value: str | None, yes: str, no: str) -> bool | None:
    """Whether the value is `yes`. It may be a list (RFC 9110, 5.3), in which one `no` suffices."""
    if value is None:
        return None
    words = {word.strip() for word in value.lower().split(",")}
    if not words <= {yes, no}:
        raise InvalidRequest(f"Invalid header '{header}': expected {yes}, {no}, got {show(value)}.", param=header)
    return no not in words


_TIMEOUT_HEADER = "x-request-timeout"
_LONGEST_TIMEOUT_S = 86_400.0
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def deadline_of(value: str | None, *, now_s: float) -> float | None:
    """The instant at which the client stops waiting, by the clock of `now_s`; None without the header.

    Raises `InvalidRequest` with the header's name and value if that is not a decimal number of seconds above 0.
    """
    if value is None:
        return None
    seconds = float(value) if _DECIMAL.fullmatch(value) else 0.0
    if not 0.0 < seconds <= _LONGEST_TIMEOUT_S:
        expected = f"expected seconds above 0, at most {_LONGEST_TIMEOUT_S:g}, such as 2.5"
        raise InvalidRequest(
            f"Invalid header '{_TIMEOUT_HEADER}': {expected}, got '{shorten(value)}'.", param=_TIMEOUT_HEADER
        )
    return now_s + seconds


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
NOTHING_ADDED: Mapping[str, msgspec.Raw] = {}


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


ON_LOOP_BYTES = 32 * 1024
"""Bodies up to this size, nearly all, are parsed on the event loop: the hand-over to a thread would cost more."""


class Parse(Protocol):
    """Parses a body into a request. Raises `InvalidRequest` or `UnsupportedParameter`."""

    def __call__(self, raw: bytes, overrides: RequestOverrides = NO_OVERRIDES) -> GenerationRequest: ...


def generation_request(
    body: WireSampling,
    endpoint: Endpoint,
    overrides: RequestOverrides,
    fields: Mapping[str, msgspec.Raw],
    *,
    features: frozenset[str],
    max_tokens: int | None,
    messages: tuple[Message, ...] = (),
    prompts: Sequence[str | tuple[int, ...] | None] = (None,),
    n: int = 1,
    choices: int = 1,
    non_text: NonText,
    include_usage: bool = False,
    added: Mapping[str, msgspec.Raw] = NOTHING_ADDED,
    parts: Sequence[tuple[str, msgspec.Raw]] | None,
) -> GenerationRequest:
    """The request in `body` and `overrides`. `fields` is the body by name, `non_text` its parts other than text;
    `parts`: see `restricted_uses`; None if restricted parameters are not looked for, because no key limits them.
    Servers also get the fields `added`, which no size counts. Raises `InvalidRequest`."""
    if not body.model:
        raise missing("model", fields)
    if body.seed == RANDOM_SEED:
        fields = {name: value for name, value in fields.items() if name != "seed"}
    raw = msgspec.json.encode(fields)  # for a repeated field, the forwarded body has the value that was validated
    size = prompt_size(raw, non_text)
    if added:
        raw = msgspec.json.encode({**fields, **added})
    temperature = temperature_of(body.temperature)
    restricted = () if parts is None else restricted_uses(fields, endpoint, parts)
    return GenerationRequest(
        endpoint=endpoint,
        model=body.model,
        messages=messages,
        prompt=prompts[0],
        further_prompts=tuple(prompt for prompt in prompts[1:] if prompt is not None),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p_of(body.top_p),
        top_k=top_k_of(body.top_k),
        seed=seed_of(body.seed),
        stop=stop_strings(body.stop),
        n=n,
        choices=choices,
        prompt_size=size,
        stream=body.stream or False,
        include_usage=include_usage,
        structured_output=is_structured(features),
        features=features if temperature > 0.0 else features - FOR_SAMPLING,
        mode=mode_of(overrides.mode),
        draft_length=draft_length_of(overrides.draft_length),
        learn=learn_of(overrides.learn),
        capture=capture_of(overrides.capture),
        restricted=restricted,
        state_ids=state_ids(restricted, fields, parts or ()),
        raw=raw,
    )


class BodyParser:
    """Calls `parse`, for bodies of more than `ON_LOOP_BYTES` in a thread, where keys take `turns`. Raises the errors of
    `parse`."""

    def __init__(self, parse: Parse, turns: Turns) -> None:
        self._parse = parse
        self._turns = turns

    async def __call__(self, raw: bytes, overrides: RequestOverrides, key: str = "") -> GenerationRequest:
        if len(raw) <= ON_LOOP_BYTES:
            return self._parse(raw, overrides)
        return await self._turns.run(key, self._parse, raw, overrides)
