"""Hand-written ASGI for the hot path: reading bodies under a limit, sending answers, watching the client connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Set
from typing import Any

import msgspec
from slipstream_core.errors import BodyTooLarge, InvalidRequest, UnsupportedMedia, shorten
from slipstream_core.random_bytes import random_bytes
from starlette.responses import Response

from slipstream_gateway.api.errors import ErrorReply, Headers, error_reply
from slipstream_gateway.upstreams.carrier import CARRIER, Carrier

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_TIMEOUT_S = 30.0
_MAX_REQUEST_ID = 128
_MAX_LENGTH_DIGITS = 18
_PLAIN_JSON = "application/json"
_WATCH = "slipstream.watch"
_CONFLICT = "several"  # not a valid credential


class ClientGone(Exception):
    """The client closed the connection before its request was complete, so no response can be sent."""


class RequestHeaders(msgspec.Struct, frozen=True, gc=False):
    """The request headers that the gateway uses. `request_id` is the client's if it is short and plain, else a fresh
    one."""

    request_id: str
    content_length: str | None = None
    mode: str | None = None
    draft_length: str | None = None
    learn: str | None = None
    capture: str | None = None
    authorization: str | None = None
    traceparent: str | None = None
    request_timeout: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None


_FIELDS = {
    b"x-request-id": "request_id",
    b"content-length": "content_length",
    b"x-slipstream-mode": "mode",
    b"x-slipstream-draft-length": "draft_length",
    b"x-slipstream-learn": "learn",
    b"x-slipstream-capture": "capture",
    b"authorization": "authorization",
    b"traceparent": "traceparent",
    b"x-request-timeout": "request_timeout",
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
}
_REFUSABLE = frozenset({"learn", "capture"})


def read_headers(scope: Scope) -> RequestHeaders:
    """Reads the headers in one pass. Of repeated headers the last counts, but all values of `learn` and `capture`. Of
    several credentials none counts, because a proxy in front of the gateway may have checked another one."""
    found: dict[str, str] = {}
    credentials = 0
    for name, value in scope["headers"]:
        field = _FIELDS.get(name)
        if field is not None:
            text = value.decode("latin-1")
            found[field] = f"{found[field]},{text}" if field in found and field in _REFUSABLE else text
            credentials += field == "authorization"
    if credentials > 1:
        found["authorization"] = _CONFLICT
    given = found.get("request_id", "")
    if not (0 < len(given) <= _MAX_REQUEST_ID and given.isascii() and given.isprintable()):
        found["request_id"] = random_bytes(16).hex()
    return RequestHeaders(**found)


def trim_headers(scope: Scope) -> None:
    """Strips the optional white space around the values of the headers (RFC 9110, 5.5), which HTTP parsers may leave.
    Both servers call it once, before anything reads a header."""
    scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]


def carrier_of(scope: Scope) -> Carrier | None:
    """The proxy that carries this request to its server; None: the gateway itself does."""
    extensions: Mapping[str, Carrier] = scope.get("extensions") or {}
    return extensions.get(CARRIER)


def chosen_headers(scope: Scope, names: Set[bytes]) -> tuple[tuple[str, str], ...]:
    """The headers called `names` (in lower case), as received."""
    return tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in scope["headers"] if name in names)


async def read_body(headers: RequestHeaders, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body. Raises `UnsupportedMedia` or `BodyTooLarge` as soon as that is known, `InvalidRequest` if it does
    not arrive in time."""
    if headers.content_type != _PLAIN_JSON or headers.content_encoding is not None:
        _check_media(headers)
    _check_length(headers.content_length, limit_bytes)
    body, has_more = _part_of(await receive())  # the server bounds the wait for it: `Bounds.body_grace_s`
    if has_more:
        body = await _with_rest(body, receive, limit_bytes)
    if len(body) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    return body


def _check_length(length: str | None, limit_bytes: int) -> None:
    if length is None:
        return
    if not (length.isascii() and length.isdigit()):
        message = f"Invalid header 'content-length': expected decimal digits, got '{shorten(length)}'."
        raise InvalidRequest(message, param="content-length")
    digits = length.lstrip("0")
    if len(digits) > _MAX_LENGTH_DIGITS or int(digits or "0") > limit_bytes:
        raise BodyTooLarge(limit_bytes)


def _check_media(headers: RequestHeaders) -> None:
    """A page of another site can send bodies declared as text or form, or without a type, without a preflight request.
    So only bodies declared as JSON are accepted."""
    kind, encoding = headers.content_type, headers.content_encoding
    if kind is None:
        raise UnsupportedMedia(f"Missing header 'content-type': expected {_PLAIN_JSON}.", param="content-type")
    media = kind.partition(";")[0].strip().lower()
    if media != _PLAIN_JSON and not media.endswith("+json"):
        message = f"Invalid header 'content-type': expected {_PLAIN_JSON}, got '{shorten(kind)}'."
        raise UnsupportedMedia(message, param="content-type")
    if encoding is not None and encoding.lower() != "identity":
        message = f"Invalid header 'content-encoding': only identity is supported, got '{shorten(encoding)}'."
        raise UnsupportedMedia(message, param="content-encoding")


async def _with_rest(first: bytes, receive: Receive, limit_bytes: int) -> bytes:
    """The body that begins with `first`, as far as it is within the limit."""
    parts, size_bytes, has_more = [first], len(first), True
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while has_more and size_bytes <= limit_bytes:
                part, has_more = _part_of(await receive())
                parts.append(part)
                size_bytes += len(part)
    except TimeoutError as exc:
        raise InvalidRequest(f"The request body did not arrive within {BODY_TIMEOUT_S:g} s.") from exc
    return b"".join(parts)


def _part_of(message: Message) -> tuple[bytes, bool]:
    """A part of a body, and whether more follows."""
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


async def send_reply(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Sends a whole response. `headers` is not changed."""
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [*headers, (b"content-length", b"%d" % len(body))],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, reply: ErrorReply, extra: Headers) -> None:
    await send_reply(send, reply.status, [*reply.headers, *extra], reply.body)


class ClientWatch:
    """Cancels the current task when the client of the request disconnects. Both servers call `disconnected`, because a
    task that waits in ASGI's `receive` would cost 10 µs."""

    def __init__(self, scope: Scope) -> None:
        self.is_gone = False
        self._watched = asyncio.current_task()
        scope[_WATCH] = self

    def close(self) -> None:
        self._watched = None

    def lose(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            self.is_gone = True
            watched.cancel()


def disconnected(scope: Scope) -> None:
    """Notifies the watch of a request, if it has one, that its client has disconnected."""
    watch: ClientWatch | None = scope.get(_WATCH)
    if watch is not None:
        watch.lose()


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A small JSON response of endpoints off the hot path."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_response(error: Exception) -> Response:
    """An error response of endpoints off the hot path."""
    reply = error_reply(error)
    named = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
    return Response(reply.body, reply.status, named)
