"""Reads the bytes of `/v1/responses`. They pass to the client unchanged.

Events are named: generated text comes in `response.<kind>.delta`; `response.completed` (or `incomplete`, `failed`) ends
the stream and holds the whole response with its usage. There is no `[DONE]`. Servers announce a response
(`response.created`, `response.in_progress`) before they begin to generate.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import contextlib
import re

import msgspec

from slipstream_gateway.upstreams.base import Count, Usage
from slipstream_gateway.upstreams.openai_wire import NO_USAGE, parse_usage
from slipstream_gateway.upstreams.output_bound import most_tokens_of_delta, most_tokens_of_response
from slipstream_gateway.upstreams.sse import count_events, event_data, event_name, split_events
from slipstream_gateway.upstreams.wire_errors import WireError, error_of, failure_at

# Only a real key matches, because quotes inside a JSON string are escaped.
_DELTA = re.compile(rb'"type"\s*:\s*"response\.[a-z_.]+\.delta"')
_ANNOUNCEMENT = re.compile(rb'"type"\s*:\s*"response\.(?:created|queued|in_progress)"')
_END = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed)"')
_FAILURE = re.compile(
    rb'"type"\s*:\s*"(?:error|response\.failed)"|"error"\s*:\s*[^\sn]|"object"\s*:\s*"error"|(?:\A|\n)event: ?error'
)
_SEQUENCE_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,12})')


class _Item(msgspec.Struct):
    id: str | None = None


class _Made(msgspec.Struct):
    id: str | None = None
    output: list[_Item] | None = None


class _MadeEvent(msgspec.Struct):
    response: _Made | None = None


class _Usage(msgspec.Struct):
    input_tokens: Count | None = None
    output_tokens: Count | None = None


class _Response(msgspec.Struct):
    usage: msgspec.Raw = NO_USAGE
    error: WireError | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    response: _Response | None = None


_decode_response = msgspec.json.Decoder(_Response).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_usage = msgspec.json.Decoder(_Usage | None).decode


class ResponsesReader:
    """Reads the events of one response into `usage`; see `openai_reading.Reader`."""

    def __init__(self, usage: Usage) -> None:
        self.begun = False
        self.generating = False
        self.done = False
        self.finished = False  # the last event says that the answer is whole, see `done`
        self.failed = False
        self._usage = usage
        usage.counted = False

    def read(self, block: bytes) -> bytes:
        self.begun = self.begun or len(_ANNOUNCEMENT.findall(block)) < count_events(block)
        deltas = len(_DELTA.findall(block))
        self.generating = self.generating or deltas > 0
        if deltas and not self._usage.exact:
            self._usage.output_tokens += deltas
            self._usage.most_output_tokens += _most_tokens(block)
        if _FAILURE.search(block) is not None and (at := failure_at(block, _error)) is not None:
            block, self.failed = block[:at], True
        if _END.search(block) is not None:
            self._read_end(block)
        return block

    def _read_end(self, block: bytes) -> None:
        self.done = True
        for event in split_events(block):
            if _END.search(event) is not None:
                parsed = _parse(event)
                if parsed is not None and parsed.response is not None:
                    _fill(parsed.response.usage, self._usage)


def read_response_usage(body: bytes) -> Usage:
    """The usage of a whole response. Raises `msgspec.DecodeError` if it is not a JSON object."""
    usage = Usage(exact=False, counted=False)
    _fill(_decode_response(body).usage, usage)
    if not usage.exact:
        usage.most_output_tokens = most_tokens_of_response(body)
    return usage


def made_ids(data: bytes, *, stream: bool) -> list[str]:
    """The ids of the response in `data` and of its items: in the events of a `stream` that begin or end it, else in a
    whole body. Empty for other data."""
    blocks = [data]
    if stream:
        blocks = [event_data(one) for one in split_events(data) if _ANNOUNCEMENT.search(one) or _END.search(one)]
    ids: list[str | None] = []
    for block in blocks:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            made = (
                msgspec.json.decode(block, type=_MadeEvent).response
                if stream
                else msgspec.json.decode(block, type=_Made)
            )
            if made is not None:
                ids += [made.id, *(item.id for item in made.output or ())]
    return [one for one in ids if one]


def next_sequence_number(data: bytes) -> int:
    """The sequence number of the event after `data`, the last events sent; 0 if there were none."""
    found = _SEQUENCE_NUMBER.findall(data)
    return int(found[-1]) + 1 if found else 0


def _most_tokens(block: bytes) -> int:
    deltas = [event for event in split_events(block) if _DELTA.search(event) is not None]
    return sum([most_tokens_of_delta(event_data(event)) for event in deltas])


def _parse(event: bytes) -> _Event | None:
    try:
        return _decode_event(event_data(event))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _error(event: bytes) -> WireError | None:
    parsed = _parse(event)
    if parsed is not None and parsed.type == "response.failed":
        error = parsed.response.error if parsed.response is not None else None
        return error or WireError()
    is_named = event_name(event) == b"error" or (parsed is not None and parsed.type == "error")
    return error_of(event_data(event), named=is_named)


def _fill(raw: msgspec.Raw, usage: Usage) -> None:
    wire = parse_usage(raw, _decode_usage)
    if wire is None or wire.input_tokens is None or wire.output_tokens is None:
        return
    usage.prompt_tokens, usage.exact = wire.input_tokens, True
    usage.output_tokens = usage.most_output_tokens = wire.output_tokens
