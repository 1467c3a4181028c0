"""The single mapping from errors to HTTP: status, OpenAI's error body, headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from slipstream_core.errors import (
    BodyTooLarge,
    BreaksServers,
    ClientTimeout,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    LimitReached,
    ModelNotFound,
    NotAuthenticated,
    Overloaded,
    RequestError,
    StreamInterrupted,
    UnsupportedMedia,
    UnsupportedParameter,
    UpstreamError,
    UpstreamFailed,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)

Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")


class _Kind(NamedTuple):
    status: int
    type: str
    code: str | None


_KINDS: tuple[tuple[type[Exception], _Kind], ...] = (
    (BodyTooLarge, _Kind(413, "invalid_request_error", None)),
    (ModelNotFound, _Kind(404, "invalid_request_error", None)),
    (InvalidRequest, _Kind(400, "invalid_request_error", None)),
    (UnsupportedParameter, _Kind(400, "invalid_request_error", None)),
    (UnsupportedMedia, _Kind(415, "invalid_request_error", None)),
    (RequestError, _Kind(400, "invalid_request_error", None)),
    (NotAuthenticated, _Kind(401, "invalid_request_error", "invalid_api_key")),
    (Forbidden, _Kind(403, "invalid_request_error", "insufficient_permissions")),
    (ClientTimeout, _Kind(408, "invalid_request_error", "client_timeout")),
    (Overloaded, _Kind(429, "rate_limit_error", "overloaded")),
    (StreamInterrupted, _Kind(502, "server_error", "stream_interrupted")),
    (DeadlineExceeded, _Kind(504, "server_error", "deadline_exceeded")),
    (BreaksServers, _Kind(503, "server_error", "request_breaks_servers")),
    (UpstreamUnavailable, _Kind(503, "server_error", "upstream_unavailable")),
    (UpstreamTimeout, _Kind(504, "server_error", "upstream_timeout")),
    (UpstreamFailed, _Kind(502, "server_error", "upstream_failed")),
    (UpstreamError, _Kind(502, "server_error", "upstream_failed")),
)
_LIMITS: Mapping[str, _Kind] = {
    "requests_per_minute": _Kind(429, "requests", "rate_limit_exceeded"),
    "tokens_per_minute": _Kind(429, "tokens", "rate_limit_exceeded"),
    "concurrent": _Kind(429, "requests", "rate_limit_exceeded"),
    "usd_per_day": _Kind(429, "insufficient_quota", "insufficient_quota"),
}
_INTERNAL = _Kind(500, "server_error", "internal_error")


class ErrorReply(NamedTuple):
    """An error as an HTTP response. `headers` lacks content-length."""

    status: int
    headers: Headers
    body: bytes


def error_reply(error: Exception) -> ErrorReply:
    """The response for `error`. Errors of other packages reveal no internals."""
    if isinstance(error, UpstreamRejected):
        return ErrorReply(error.status, [_JSON], error_body(error))
    kind = _kind(error)
    headers: Headers = [_JSON]
    if isinstance(error, NotAuthenticated):
        headers.append((b"www-authenticate", b'Bearer realm="slipstream"'))
    if isinstance(error, LimitReached):
        headers += _limit_headers(error)
    if isinstance(error, Overloaded | UpstreamUnavailable):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    if isinstance(error, BreaksServers):
        headers.append((b"x-should-retry", b"false"))  # OpenAI's clients retry other errors with this status at once
    if isinstance(error, BodyTooLarge):
        headers.append((b"connection", b"close"))  # the rest of the body need not be read
    return ErrorReply(kind.status, headers, error_body(error))


def _kind(error: Exception) -> _Kind:
    if isinstance(error, LimitReached):
        return _LIMITS[error.limit]
    return next((kind for error_class, kind in _KINDS if isinstance(error, error_class)), _INTERNAL)


def _limit_headers(error: LimitReached) -> Headers:
    """The caller's remainders and the time to retry. If a retry can never succeed, OpenAI's clients are told not to
    retry."""
    if error.retry_after_s is None:
        return [*error.headers, (b"x-should-retry", b"false")]
    return [*error.headers, (b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s)))]


def http_error_body(status: int, message: str) -> bytes:
    """OpenAI's error body for an error of the HTTP request itself: path or method."""
    kind = _Kind(status, "invalid_request_error" if status < 500 else "server_error", None)
    return _body(message, kind, param=None, code=None)


def error_body(error: Exception) -> bytes:
    """OpenAI's error body: `{"error": {"message", "type", "param", "code"}}`."""
    if isinstance(error, UpstreamRejected):
        return error.body if _is_json_object(error.body) else http_error_body(error.status, str(error))
    kind = _kind(error)
    message = "The gateway failed to process this request." if kind is _INTERNAL else str(error)
    param = error.param if isinstance(error, RequestError | Forbidden) else None
    code = error.code if isinstance(error, RequestError) else kind.code
    return _body(message, kind, param=param, code=code)


def _is_json_object(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _body(message: str, kind: _Kind, *, param: str | None, code: str | None) -> bytes:
    error = {"message": message, "type": kind.type, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def error_event(error: Exception) -> bytes:
    """The last event of a stream that fails after its first byte; no `[DONE]` follows."""
    return b"data: " + error_body(error).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n"


def response_error_event(error: Exception, sequence_number: int) -> bytes:
    """The same for a stream of `/v1/responses`, as an event of the type `error`. It has the error twice: flat, as
    OpenAI documents the event, and as the object `error`, which OpenAI sends and from which its clients raise."""
    body = msgspec.json.decode(error_body(error), type=dict[str, Any]).get("error")
    fields = body if isinstance(body, dict) else {"message": str(error)}
    flat = {name: fields.get(name) for name in ("code", "message", "param")}
    event = {"type": "error", **flat, "sequence_number": sequence_number, "error": fields}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
