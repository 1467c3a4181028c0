"""The public model name in an answer: that of the answer itself, and no other field called `model`.

Servers answer with a name of their own: vLLM with the first one that it serves, others with a path or another case.
"""

from __future__ import annotations

import re

import msgspec

from slipstream_gateway.upstreams.sse import split_events

_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SCALAR = rb'[^"\[\]{},\s]++'
# The members of an object up to its `model`, if no value before it is an object or a list: so all known servers write.
# Possessive, so that the time is linear in the length whatever a server sends.
_UP_TO_NAME = re.compile(
    rb'\s*+\{\s*+(?:"[^"\\]*+"\s*+:\s*+(?:%b|%b)\s*+,\s*+)*?"model"\s*+:\s*+(%b|null)' % (_TEXT, _SCALAR, _TEXT)
)
_MODEL = b'"model"'
_DATA = b"data:"
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


class ModelName:
    """Writes the name `public` into one answer. Only its bytes change, where the server writes the name before any
    nested value. `in_response`: the answer is the field `response` of its events (`/v1/responses`)."""

    def __init__(self, public: str, *, in_response: bool = False) -> None:
        self._public = _encode(public)
        self._in_response = in_response
        self._is_public = False  # the server writes this name itself
        self._head = self._new_head = b""  # of an event, up to its name: the events of a stream share it

    def of_body(self, body: bytes) -> bytes:
        """A whole JSON object with the public name."""
        return self._object(body) if _MODEL in body else body

    def of_events(self, block: bytes) -> bytes:
        """A block of whole events with the public name."""
        if self._is_public or _MODEL not in block:
            return block
        if block.find(b"\n\n") == len(block) - 2:
            return self._event(block)
        return b"".join([self._event(event) for event in split_events(block)])

    def _event(self, event: bytes) -> bytes:
        if self._head and event.startswith(self._head):
            return self._new_head + event[len(self._head) :]
        at = event.find(_DATA)
        if at < 0 or _MODEL not in event:
            return event
        start = at + len(_DATA)
        found = None if self._in_response else _UP_TO_NAME.match(event, start)
        if found is None:
            data = event[start:]
            changed = self._response(data) if self._in_response else self._parsed(data)
            return event if changed is data else event[:start] + b" " + changed + b"\n\n"
        self._is_public = found[1] == self._public
        self._head, self._new_head = event[: found.end(1)], event[: found.start(1)] + self._public
        return self._new_head + event[found.end(1) :]

    def _object(self, data: bytes) -> bytes:
        found = _UP_TO_NAME.match(data)
        if found is not None:
            return data[: found.start(1)] + self._public + data[found.end(1) :]
        return self._parsed(data)

    def _parsed(self, data: bytes) -> bytes:
        try:
            fields = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return data
        if bytes(fields.get("model", self._public)) == self._public:
            return data
        fields["model"] = msgspec.Raw(self._public)
        return _encode(fields)

    def _response(self, data: bytes) -> bytes:
        try:
            fields = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return data
        response = bytes(fields.get("response", b""))
        changed = self._object(response) if response[:1] == b"{" else response
        if changed == response:
            return data
        fields["response"] = msgspec.Raw(changed)
        return _encode(fields)
