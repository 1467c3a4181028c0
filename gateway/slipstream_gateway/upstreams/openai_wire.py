"""The changes of the gateway to the bytes of an OpenAI-compatible server. All other bytes pass unchanged.

Request: the model's name, and `stream_options.include_usage`, without which servers do not report the cost of a stream.
Response: the public model name, and the usage event is removed again if the client did not request it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from typing import Any, TypeVar

import msgspec
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.upstreams.base import Count, Usage, engine_seconds
from slipstream_gateway.upstreams.output_bound import most_tokens_of_answer
from slipstream_gateway.upstreams.sse import event_data, split_events

_USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*\{')
_GENERATED = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|refusal|arguments)"\s*:\s*"[^"]|"tool_calls"\s*:\s*\['
)
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode
_Usage = TypeVar("_Usage")
_NONE: Mapping[str, msgspec.Raw] = {}
NO_USAGE = msgspec.Raw(b"null")


class _TokenDetails(msgspec.Struct):
    accepted_prediction_tokens: Count | None = None
    rejected_prediction_tokens: Count | None = None


class _Steps(msgspec.Struct):
    """Additional fields of another Slipstream gateway."""

    target_steps: Count | None = None
    rejected_at: tuple[Count, ...] | None = None
    engine_seconds: Any = None


class _WireUsage(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    completion_tokens_details: _TokenDetails | None = None
    slipstream: _Steps | None = None


class _Envelope(msgspec.Struct):
    usage: msgspec.Raw = NO_USAGE
    choices: list[msgspec.Raw] | None = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_usage = msgspec.json.Decoder(_WireUsage | None).decode


def request_body(
    request: GenerationRequest,
    model: str,
    fields: Mapping[str, msgspec.Raw] = _NONE,
    *,
    leave_out: Set[str] = frozenset(),
) -> bytes:
    """The body to send upstream for `request`, whose `raw` is a valid JSON object, with other `fields`, and without the
    names in `leave_out`."""
    # Only these two need the option: a response always ends with its usage.
    ask_usage = request.stream and not request.include_usage and request.endpoint is not Endpoint.RESPONSES
    if model == request.model and not ask_usage and not fields and not leave_out:
        return request.raw
    body = _decode_raw(request.raw)
    if leave_out:
        body = {name: value for name, value in body.items() if name not in leave_out}
    body["model"] = msgspec.Raw(_encode(model))
    body.update(fields)
    if ask_usage:
        options = body.get("stream_options")
        known = _decode_raw(options) if options is not None and bytes(options) != b"null" else {}
        known["include_usage"] = msgspec.Raw(b"true")
        body["stream_options"] = msgspec.Raw(_encode(known))
    return _encode(body)


def has_generated_text(block: bytes) -> bool:
    """Whether a block of events has generated text, not only the role event."""
    return _GENERATED.search(block) is not None


def has_usage(block: bytes) -> bool:
    """Whether a block of events may contain a usage object (some servers send `"usage": null` in every event)."""
    return b'"usage"' in block and _USAGE_OBJECT.search(block) is not None


def take_usage(block: bytes, usage: Usage, *, keep: bool, choices: int = 1) -> bytes:
    """Reads usage objects out of `block` into `usage`; with `keep` False drops events that hold nothing else. The
    answer has `choices` choices."""
    return b"".join(
        [
            event
            for event in split_events(block)
            if not has_usage(event) or not _read_usage(event_data(event), usage, choices) or keep
        ]
    )


def _read_usage(data: bytes, usage: Usage, choices: int) -> bool:
    """Fills `usage`; True if the event has no choices, i.e. is the usage event itself. With several choices, an event
    that has some reports the usage of those alone (vLLM's `continuous_usage_stats`)."""
    try:
        envelope = _decode_envelope(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    if choices == 1 or not envelope.choices:
        _fill(envelope.usage, usage)
    return not envelope.choices


def read_body_usage(body: bytes) -> Usage:
    """The usage of a whole JSON answer. Raises `msgspec.DecodeError` if it is not a JSON object."""
    usage = Usage(exact=False)
    _fill(_decode_envelope(body).usage, usage)
    if not usage.exact:
        usage.most_output_tokens = most_tokens_of_answer(body)
    return usage


def parse_usage(raw: msgspec.Raw, decode: Callable[[msgspec.Raw], _Usage | None]) -> _Usage | None:
    """The usage object `raw` of a server; None if there is none, or it is invalid: negative, out of bounds, or not
    numbers."""
    try:
        return decode(raw)
    except msgspec.DecodeError:
        return None


def _fill(raw: msgspec.Raw, usage: Usage) -> None:
    """Fills `usage` from `raw` unless that is missing or invalid."""
    wire = parse_usage(raw, _decode_usage)
    if wire is None:
        return
    usage.prompt_tokens = wire.prompt_tokens or usage.prompt_tokens
    if wire.completion_tokens is not None:
        usage.output_tokens = usage.most_output_tokens = wire.completion_tokens
        usage.exact = True
    details = wire.completion_tokens_details
    if details is not None:
        usage.accepted = details.accepted_prediction_tokens or 0
        usage.drafted = usage.accepted + (details.rejected_prediction_tokens or 0)
    if wire.slipstream is not None:
        usage.steps = wire.slipstream.target_steps or 0
        usage.rejected_at = wire.slipstream.rejected_at or ()
        usage.engine_s = engine_seconds(wire.slipstream.engine_seconds)
