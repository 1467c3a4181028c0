"""The forms in which OpenAI-compatible servers report a failure in a stream, or in a body with status 200.

{"error": {"message": …, "type": …, "code": 500}}     OpenAI, vLLM
{"error": "text"}                                     Text Generation Inference
{"object": "error", "message": …, "code": 500}        earlier vLLM, LMDeploy
event: error                                          OpenAI's named event, with any data
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from slipstream_core.errors import SlipstreamError, UpstreamFailed, UpstreamRejected

from slipstream_gateway.upstreams.sse import event_data, event_name, split_events

_ABSENT = (b"null", b"false", b'""', b"{}", b"[]")
_BAD_REQUEST = 400


class WireError(msgspec.Struct):
    """The error object of servers; the code is a status with vLLM, a word with others."""

    type: Any = None
    code: Any = None

    @property
    def status(self) -> int | None:
        """The status of an error that the server blames on the request; None if it reports its own failure."""
        if isinstance(self.code, int | float):
            return int(self.code) if 400 <= self.code < 500 else None
        kind = self.type if isinstance(self.type, str) else ""
        return _BAD_REQUEST if "invalid_request" in kind or "BadRequest" in kind else None


class _Answer(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"null")
    object: Any = None
    type: Any = None
    code: Any = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_error = msgspec.json.Decoder(WireError).decode


def may_be_error(data: bytes) -> bool:
    """Whether `data`, a body or a block of events, may report an error; fast."""
    return b'"error"' in data or b"event:" in data


def error_of(data: bytes, *, named: bool = False) -> WireError | None:
    """The error that one JSON object reports; None if it reports none. `named`: its event is called `error`."""
    try:
        answer = _decode_answer(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return WireError() if named else None
    if bytes(answer.error) not in _ABSENT:
        return _parsed(answer.error)
    return WireError(answer.type, answer.code) if named or answer.object == "error" else None


def _parsed(error: msgspec.Raw) -> WireError:
    try:
        return _decode_error(error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return WireError()  # a text or a list


def error_of_event(event: bytes) -> WireError | None:
    """The error that one event of a chat or a text completion reports; None if it reports none."""
    return error_of(event_data(event), named=event_name(event) == b"error") if may_be_error(event) else None


def failure_at(block: bytes, read: Callable[[bytes], WireError | None] = error_of_event) -> int | None:
    """The offset of the first event in which the server reports its own failure; None if there is none. An error that
    the server blames on the request is part of the answer. `read` reads the error of one event."""
    at = 0
    for event in split_events(block):
        error = read(event)
        if error is not None and error.status is None:
            return at
        at += len(event)
    return None


def reported_error(body: bytes) -> SlipstreamError | None:
    """The error that a whole body with status 200 reports; None if it is an answer."""
    error = error_of(body) if b'"error"' in body else None
    if error is None:
        return None
    if error.status is not None:
        return UpstreamRejected(error.status, body)
    return UpstreamFailed("The upstream reported an error with status 200.", detail=f"code {error.code!r:.40}")
