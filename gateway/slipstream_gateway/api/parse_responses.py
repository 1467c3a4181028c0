"""Parses bodies of `POST /v1/responses` into `GenerationRequest`.

It reads only the inputs of the decision: the texts of `input` and `instructions`, sampling, limits. All other fields go
upstream unchanged. The gateway stores no responses; parameters that need a stored response are refused here, or by the
routing table if a pair has several servers (`previous_response_id`, `conversation`).

https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from slipstream_core.errors import InvalidRequest, RequestCode, UnsupportedParameter, shorten
from slipstream_core.types import RESPONSES_FEATURE, Endpoint, GenerationRequest, Message

from slipstream_gateway.api.body import (
    RESPONSES_FIELDS,
    WireItem,
    WireResponsesBody,
    decode_responses_body,
    empty_array,
    missing,
    show,
)
from slipstream_gateway.api.features import features_in_use, integer
from slipstream_gateway.api.request import ALL_TEXT, NO_OVERRIDES, RequestOverrides, generation_request, media_of_items

ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")
STORED_INPUT = ("prompt", "previous_response_id", "conversation")
_LOG_PROBABILITIES = "message.output_text.logprobs"


def parse_responses_request(
    raw: bytes, overrides: RequestOverrides = NO_OVERRIDES, *, find_restricted: bool = True
) -> GenerationRequest:
    """Parses the body of `POST /v1/responses`. `find_restricted`: see `generation_request`. Raises `InvalidRequest` or
    `UnsupportedParameter`."""
    body, fields = decode_responses_body(raw)
    if body.background:
        message = "Invalid 'background': the gateway stores no responses to fetch later. Use 'stream' for long answers."
        raise UnsupportedParameter(message, param="background")
    messages, found = _messages(body, fields)
    items = [("input", fields["input"])] if isinstance(body.input, list) else []
    features = features_in_use(fields, RESPONSES_FIELDS) | _text_features(body) | _include_features(body) | found
    return generation_request(
        body,
        Endpoint.RESPONSES,
        overrides,
        fields,
        features=features | {RESPONSES_FEATURE},
        max_tokens=integer("max_output_tokens", body.max_output_tokens, 1),
        messages=messages,
        non_text=media_of_items(body.input, fields["input"]) if isinstance(body.input, list) else ALL_TEXT,
        parts=items if find_restricted else None,
    )


def _messages(body: WireResponsesBody, fields: Mapping[str, msgspec.Raw]) -> tuple[tuple[Message, ...], frozenset[str]]:
    """The texts as chat messages, and the features of the items that hold more than text."""
    messages = [Message(role="system", content=body.instructions)] if body.instructions else []
    found: set[str] = set()
    if isinstance(body.input, str):
        messages.append(Message(role="user", content=body.input))
    elif body.input:
        for index, item in enumerate(body.input):
            messages.append(_message(item, f"input[{index}]", found))
    elif not any(name in fields for name in STORED_INPUT):
        if body.input is None:
            raise missing("input", fields)
        raise empty_array("input", "a string or at least one item")
    return tuple(messages), frozenset(found)


def _message(item: WireItem, where: str, found: set[str]) -> Message:
    """A message, the call or result of a tool, or an item without text for the classifier."""
    kind = item.type or "message"
    if kind == "message":
        if item.role not in ROLES:
            where = f"{where}.role"
            expected = f"expected one of {', '.join(ROLES)}"
            raise InvalidRequest(f"Invalid '{where}': {expected}, got {show(item.role)}.", param=where)
        return Message(role=item.role, content=_text(item.content, f"{where}.content", found))
    if kind.endswith("_call_output"):
        found.add("tools")
        return Message(role="tool", content=item.output if isinstance(item.output, str) else "")
    if kind.endswith("_call"):
        found.add("tools")
    return Message(role="assistant", content=item.arguments if isinstance(item.arguments, str) else "")


def _text(content: object, where: str, found: set[str]) -> str:
    """The text parts joined. The kinds of other parts are added to `found`."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        message = f"Invalid '{where}': expected a string or parts, got {show(content)}."
        raise InvalidRequest(message, param=where, code=RequestCode.TYPE)
    return "".join([_part(part, f"{where}[{index}]", found) for index, part in enumerate(content)])


def _part(part: Any, where: str, found: set[str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        message = f"Invalid '{where}': expected an object with a type, got {show(part)}."
        raise InvalidRequest(message, param=where, code=RequestCode.TYPE)
    if kind not in _TEXT_PARTS:
        found.add(shorten(kind))
        return ""
    text = part.get("text")
    if not isinstance(text, str):
        where = f"{where}.text"
        message = f"Invalid '{where}': expected a string, got {show(text)}."
        raise InvalidRequest(message, param=where, code=RequestCode.TYPE)
    return text


def _text_features(body: WireResponsesBody) -> frozenset[str]:
    """`text.format` if the answer has a prescribed format; other settings of the text by their own names."""
    names = {f"text.{name}" for name, value in (body.text or {}).items() if value is not None and name != "format"}
    form = (body.text or {}).get("format")
    if form is not None and form != {"type": "text"}:
        names.add("text.format")
    return frozenset(shorten(name) for name in names)


def _include_features(body: WireResponsesBody) -> frozenset[str]:
    """The requested inclusions. Log-probabilities get their chat name, which backends know."""
    included: Sequence[str] = body.include or ()
    names = {"logprobs" if name == _LOG_PROBABILITIES else f"include.{shorten(name)}" for name in included}
    return frozenset(names)
