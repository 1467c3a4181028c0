"""Bodies into `GenerationRequest`: everything is checked here, once, and an error names the field and the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from slipstream_gateway.api.body import WireBody, WireMessage, decode_body, show
from slipstream_gateway.api.features import features_in_use, is_structured, message_features, stream_option_features
from slipstream_gateway.errors import InvalidRequest
from slipstream_gateway.manifest.objects import MAX_DRAFT_TOKENS
from slipstream_gateway.types import Endpoint, GenerationRequest, Message, Mode

MAX_CHOICES = 8
MAX_STOP_STRINGS = 4
MAX_TOKENS = 2**31 - 1
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Wishes(NamedTuple):
    """What a client asks of the gateway by headers, as they came: `x-slipstream-mode`, `x-slipstream-draft-length`
    and `x-slipstream-learn`."""

    mode: str | None = None
    draft_length: str | None = None
    learn: str | None = None


NO_WISHES = Wishes()


def parse_chat_request(raw: bytes, wishes: Wishes = NO_WISHES) -> GenerationRequest:
    """The body of `POST /v1/chat/completions`. Raises `InvalidRequest`."""
    body, fields = decode_body(raw)
    if body.messages is None:
        raise InvalidRequest("Missing required parameter: 'messages'.", param="messages")
    if not body.messages:
        raise InvalidRequest("Invalid 'messages': expected at least one message, got [].", param="messages")
    messages = tuple([_message(message, index) for index, message in enumerate(body.messages)])
    features = features_in_use(fields) | message_features(body.messages, fields["messages"])
    return _request(body, Endpoint.CHAT, wishes, fields, messages=messages, features=features)


def parse_completion_request(raw: bytes, wishes: Wishes = NO_WISHES) -> GenerationRequest:
    """The body of `POST /v1/completions`. Raises `InvalidRequest`."""
    body, fields = decode_body(raw)
    prompt, several = _prompt(body.prompt)
    features = features_in_use(fields)
    if several:
        features |= {"prompt"}
    return _request(body, Endpoint.COMPLETION, wishes, fields, prompt=prompt, features=features)


def parse_request(raw: bytes, wishes: Wishes = NO_WISHES) -> GenerationRequest:
    """Either kind of body: with `messages` it is a chat, else a completion. Raises `InvalidRequest`."""
    _, fields = decode_body(raw)
    parse = parse_chat_request if "messages" in fields or "prompt" not in fields else parse_completion_request
    return parse(raw, wishes)


def _request(
    body: WireBody,
    endpoint: Endpoint,
    wishes: Wishes,
    fields: Mapping[str, msgspec.Raw],
    *,
    features: frozenset[str],
    messages: tuple[Message, ...] = (),
    prompt: str | tuple[int, ...] | None = None,
) -> GenerationRequest:
    if not body.model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    stream = body.stream or False
    options = body.stream_options
    if options is not None and not stream:
        raise InvalidRequest("Invalid 'stream_options': only allowed when 'stream' is true.", param="stream_options")
    if options is not None:
        features |= stream_option_features(fields["stream_options"])
    return GenerationRequest(
        endpoint=endpoint,
        model=body.model,
        messages=messages,
        prompt=prompt,
        max_tokens=_max_tokens(body),
        temperature=_between("temperature", body.temperature, 1.0, 0.0, 2.0),
        top_p=_between("top_p", body.top_p, 1.0, 0.0, 1.0),
        top_k=_top_k(body.top_k),
        seed=_integer("seed", body.seed, -(2**63), 2**63 - 1),
        stop=_stop(body.stop),
        n=_integer("n", body.n, 1, MAX_CHOICES) or 1,
        stream=stream,
        include_usage=bool(options is not None and options.include_usage),
        structured_output=is_structured(features),
        features=features,
        mode=_mode(wishes.mode),
        draft_length=_draft_length(wishes.draft_length),
        learn=_learn(wishes.learn),
        raw=msgspec.json.encode(fields),  # where a field stood twice, everybody now sees the one that was checked
    )


def _message(message: WireMessage, index: int) -> Message:
    role, content = message.role, message.content
    if role not in ROLES:
        where = f"messages[{index}].role"
        raise InvalidRequest(f"Invalid '{where}': expected one of {', '.join(ROLES)}, got {show(role)}.", param=where)
    if content is None:
        if role not in ("assistant", "function"):
            where = f"messages[{index}].content"
            raise InvalidRequest(f"Invalid '{where}': expected a string or text parts, got null.", param=where)
        content = ""
    elif not isinstance(content, str):
        content = _joined(content, index)
    return Message(role=role, content=content, name=message.name)


def _joined(parts: Sequence[object], index: int) -> str:
    """Text parts as one text; other parts are features and have no text."""
    if not parts:
        where = f"messages[{index}].content"
        raise InvalidRequest(f"Invalid '{where}': expected at least one part, got [].", param=where)
    texts = []
    for position, part in enumerate(parts):
        kind, text = getattr(part, "type", ""), getattr(part, "text", None)
        if kind == "text" and text is None:
            where = f"messages[{index}].content[{position}].text"
            raise InvalidRequest(f"Missing required parameter: '{where}'.", param=where)
        texts.append(text or "")
    return "".join(texts)


def _prompt(prompt: str | Sequence[str | int | list[int]] | None) -> tuple[str | tuple[int, ...], bool]:
    """The prompt as text or token ids, and whether there are several (the first stands for all)."""
    if isinstance(prompt, str):
        return prompt, False
    if prompt is None:
        raise InvalidRequest("Missing required parameter: 'prompt'.", param="prompt")
    if not prompt:
        raise InvalidRequest("Invalid 'prompt': expected text or token ids, got [].", param="prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise InvalidRequest("Invalid 'prompt': texts, token ids and lists of them cannot be mixed.", param="prompt")
    first = prompt[0]
    if isinstance(first, str):
        return first, len(prompt) > 1
    if isinstance(first, int):
        return _token_ids([item for item in prompt if isinstance(item, int)]), False
    return _token_ids(first), len(prompt) > 1


def _token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    if not ids:
        raise InvalidRequest("Invalid 'prompt': expected token ids, got [].", param="prompt")
    for token_id in ids:
        if not 0 <= token_id <= MAX_TOKENS:
            raise InvalidRequest(f"Invalid 'prompt': {show(token_id)} is not a token id.", param="prompt")
    return tuple(ids)


def _max_tokens(body: WireBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = f"'max_tokens' ({show(old)}) and 'max_completion_tokens' ({show(new)}) differ: give one of them."
        raise InvalidRequest(message, param="max_tokens")
    if new is not None:
        return _integer("max_completion_tokens", new, 1, MAX_TOKENS)
    return _integer("max_tokens", old, 1, MAX_TOKENS)


def _top_k(value: int | None) -> int:
    """-1 and 0 both switch the filter off, as in vLLM."""
    return max(_integer("top_k", value, -1, MAX_TOKENS) or 0, 0)


def _integer(name: str, value: int | None, low: int, high: int) -> int | None:
    if value is None or low <= value <= high:
        return value
    raise InvalidRequest(f"Invalid '{name}': expected {low} to {high}, got {show(value)}.", param=name)


def _between(name: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if low <= value <= high:
        return value
    raise InvalidRequest(f"Invalid '{name}': expected {low:g} to {high:g}, got {show(value)}.", param=name)


def _stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        message = f"Invalid 'stop': at most {MAX_STOP_STRINGS} strings are allowed, got {len(strings)}."
        raise InvalidRequest(message, param="stop")
    if "" in strings:
        raise InvalidRequest("Invalid 'stop': a stop string must not be empty.", param="stop")
    return strings


_MODES: Mapping[str, Mode] = {str(mode): mode for mode in Mode}


def _mode(value: str | None) -> Mode:
    if value is None:
        return Mode.AUTO
    mode = _MODES.get(value.strip().lower())
    if mode is None:
        message = f"Invalid header 'x-slipstream-mode': expected {', '.join(_MODES)}, got {show(value)}."
        raise InvalidRequest(message, param="x-slipstream-mode")
    return mode


def _draft_length(value: str | None) -> int | None:
    if value is None:
        return None
    text = value.strip()
    if len(text) > 2 or not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MAX_DRAFT_TOKENS:
        message = f"Invalid header 'x-slipstream-draft-length': expected 1 to {MAX_DRAFT_TOKENS}, got {show(value)}."
        raise InvalidRequest(message, param="x-slipstream-draft-length")
    return int(text)


def _learn(value: str | None) -> bool:
    if value is None:
        return True
    word = value.strip().lower()
    if word not in ("on", "off"):
        message = f"Invalid header 'x-slipstream-learn': expected on, off, got {show(value)}."
        raise InvalidRequest(message, param="x-slipstream-learn")
    return word == "on"
