"""Parses bodies of chat and text completions into `GenerationRequest`. All validation happens here, once; errors name
the field and the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from slipstream_core.errors import InvalidRequest, MissingParameter, RequestCode
from slipstream_core.types import Endpoint, GenerationRequest, Message

from slipstream_gateway.api.body import WireBody, WireMessage, decode_body, decode_fields, empty_array, missing, show
from slipstream_gateway.api.features import (
    MAX_TOKENS,
    choices_of,
    features_in_use,
    integer,
    message_features,
    stream_option_features,
)
from slipstream_gateway.api.parse_responses import parse_responses_request
from slipstream_gateway.api.request import (
    ALL_TEXT,
    NO_OVERRIDES,
    NonText,
    RequestOverrides,
    generation_request,
    media_of_messages,
)
from slipstream_gateway.api.restricted import content_parts

Prompt = str | tuple[int, ...]
COMPLETION_MAX_TOKENS = 16
"""The limit of a text completion without one, as in OpenAI's reference. It is sent to the server, because servers of
other engines have other defaults. A chat or a response without a limit ends at the context on every engine."""
_COMPLETION_LIMIT: Mapping[str, msgspec.Raw] = {"max_tokens": msgspec.Raw(b"%d" % COMPLETION_MAX_TOKENS)}
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def parse_chat_request(
    raw: bytes, overrides: RequestOverrides = NO_OVERRIDES, *, find_restricted: bool = True
) -> GenerationRequest:
    """Parses the body of `POST /v1/chat/completions`. `find_restricted`: see `generation_request`. Raises
    `InvalidRequest`."""
    body, fields = decode_body(raw)
    if body.messages is None:
        raise missing("messages", fields)
    if not body.messages:
        raise empty_array("messages", "at least one message")
    messages = tuple([_message(message, index) for index, message in enumerate(body.messages)])
    features = features_in_use(fields) | message_features(body.messages, fields["messages"])
    media = media_of_messages(body.messages, fields["messages"])
    return _request(
        body,
        Endpoint.CHAT,
        overrides,
        fields,
        messages=messages,
        non_text=media,
        features=features,
        parts=content_parts(body.messages, fields["messages"]) if find_restricted else None,
    )


def parse_completion_request(
    raw: bytes, overrides: RequestOverrides = NO_OVERRIDES, *, find_restricted: bool = True
) -> GenerationRequest:
    """Parses the body of `POST /v1/completions`. `find_restricted`: see `generation_request`. Raises
    `InvalidRequest`."""
    body, fields = decode_body(raw)
    if body.prompt is None:
        raise missing("prompt", fields)
    prompts = parse_prompts(body.prompt)
    features = features_in_use(fields)
    if len(prompts) > 1:
        features |= {"prompt"}
    if 0 in (body.max_tokens, body.max_completion_tokens):
        features |= {"max_tokens 0"}  # scores the prompt; Slipstream's own engine generates at least one token
    _name_limit(body, fields)
    return _request(
        body,
        Endpoint.COMPLETION,
        overrides,
        fields,
        features=features,
        prompts=prompts,
        non_text=token_ids_of(prompts, fields["prompt"]),
        parts=() if find_restricted else None,
    )


def parse_request(
    raw: bytes, overrides: RequestOverrides = NO_OVERRIDES, *, find_restricted: bool = True
) -> GenerationRequest:
    """Parses a body of any kind: with `messages` it is a chat, with `input` a response, with `prompt` a text
    completion. Raises `InvalidRequest` or `UnsupportedParameter`."""
    fields = decode_fields(raw)
    if "messages" in fields or fields.keys().isdisjoint(("input", "prompt")):
        return parse_chat_request(raw, overrides, find_restricted=find_restricted)
    parse = parse_responses_request if "input" in fields else parse_completion_request
    return parse(raw, overrides, find_restricted=find_restricted)


def _request(
    body: WireBody,
    endpoint: Endpoint,
    overrides: RequestOverrides,
    fields: Mapping[str, msgspec.Raw],
    *,
    features: frozenset[str],
    non_text: NonText,
    messages: tuple[Message, ...] = (),
    prompts: Sequence[Prompt | None] = (None,),
    parts: Sequence[tuple[str, msgspec.Raw]] | None,
) -> GenerationRequest:
    options = body.stream_options
    if options is not None and not body.stream:
        raise InvalidRequest("Invalid 'stream_options': only allowed when 'stream' is true.", param="stream_options")
    if options is not None:
        features |= stream_option_features(fields["stream_options"])
    limit = _max_tokens(body, 1 if endpoint is Endpoint.CHAT else 0)
    added: Mapping[str, msgspec.Raw] = {}
    if limit is None and endpoint is Endpoint.COMPLETION:
        limit, added = COMPLETION_MAX_TOKENS, _COMPLETION_LIMIT
    return generation_request(
        body,
        endpoint,
        overrides,
        fields,
        features=features,
        max_tokens=limit,
        added=added,
        messages=messages,
        prompts=prompts,
        n=body.n or 1,
        choices=choices_of(len(prompts), body.n, body.best_of),
        non_text=non_text,
        include_usage=bool(options is not None and options.include_usage),
        parts=parts,
    )


def _message(message: WireMessage, index: int) -> Message:
    role, content = message.role, message.content
    if role not in ROLES:
        where = f"messages[{index}].role"
        raise InvalidRequest(f"Invalid '{where}': expected one of {', '.join(ROLES)}, got {show(role)}.", param=where)
    if content is None:
        if role not in ("assistant", "function"):
            where = f"messages[{index}].content"
            what = f"Invalid '{where}': expected a string or text parts, got null."
            raise InvalidRequest(what, param=where, code=RequestCode.TYPE)
        content = ""
    elif not isinstance(content, str):
        content = _joined(content, index)
    return Message(role=role, content=content, name=message.name)


def _joined(parts: Sequence[object], index: int) -> str:
    """The text parts joined; other parts are features and have no text."""
    if not parts:
        raise empty_array(f"messages[{index}].content", "at least one part")
    texts = []
    for position, part in enumerate(parts):
        kind, text = getattr(part, "type", ""), getattr(part, "text", None)
        if kind == "text" and text is None:
            raise MissingParameter(f"messages[{index}].content[{position}].text")
        texts.append(text or "")
    return "".join(texts)


def _name_limit(body: WireBody, fields: dict[str, msgspec.Raw]) -> None:
    """Renames the limit of a text completion to `max_tokens`: vLLM ignores `max_completion_tokens` there."""
    if body.max_completion_tokens is not None:
        fields["max_tokens"] = fields.pop("max_completion_tokens")


def _max_tokens(body: WireBody, least: int) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = f"'max_tokens' ({show(old)}) and 'max_completion_tokens' ({show(new)}) differ: send only one of them."
        raise InvalidRequest(message, param="max_tokens")
    if new is not None:
        return integer("max_completion_tokens", new, least)
    return integer("max_tokens", old, least)


def parse_prompts(prompt: str | Sequence[str | int | list[int]]) -> Sequence[Prompt]:
    """Parses every prompt as text or token ids, at least one. Raises `InvalidRequest`."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise empty_array("prompt", "text or token ids")
    if len({type(item) for item in prompt}) > 1:
        message = "Invalid 'prompt': texts, token ids and lists of them cannot be mixed."
        raise InvalidRequest(message, param="prompt", code=RequestCode.TYPE)
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
        raise empty_array("prompt", "token ids")
    for token_id in ids:
        if not 0 <= token_id <= MAX_TOKENS:
            raise InvalidRequest(f"Invalid 'prompt': {show(token_id)} is not a token id.", param="prompt")
    return tuple(ids)
