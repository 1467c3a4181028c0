"""ASGI by hand for the hot path: bodies in under a limit, answers out, and a watch on the client."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from starlette.responses import Response

from slipstream_gateway.api.errors import ErrorReply, Headers
from slipstream_gateway.errors import BodyTooLarge, InvalidRequest

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_TIMEOUT_S = 30.0
WATCH_DELAY_S = 0.02
_MAX_REQUEST_ID = 128


class ClientGone(Exception):
    """The client closed the connection before its request was complete: there is nobody to answer."""


def header(scope: Scope, name: bytes) -> str | None:
    """The first header called `name` (lower case), if any."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def request_id(scope: Scope) -> str:
    """The client's `x-request-id` where it is short and plain, else a fresh one."""
    given = header(scope, b"x-request-id")
    if given and len(given) <= _MAX_REQUEST_ID and given.isascii() and given.isprintable():
        return given
    return secrets.token_hex(16)


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body. Raises `BodyTooLarge` as soon as that is known, `InvalidRequest` when it does not come."""
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    message = await _receive_body(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        return body
    parts, total = [body], len(body)
    while message.get("more_body", False):
        message = await _receive_body(receive)
        parts.append(message.get("body", b""))
        total += len(parts[-1])
        if total > limit_bytes:
            raise BodyTooLarge(limit_bytes)
    return b"".join(parts)


async def _receive_body(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            message = await receive()
    except TimeoutError as exc:
        raise InvalidRequest(f"The request body did not arrive within {BODY_TIMEOUT_S:g} s.") from exc
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message


async def send_reply(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """A whole answer. `headers` is not changed."""
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
    """Cancels the current task when the client goes away.

    A task that waits for the disconnect costs 10 µs, so it starts only for requests that live longer than
    `WATCH_DELAY_S`. The body must have been read before.
    """

    def __init__(self, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        self.gone = False
        self._receive = receive
        self._watched = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = loop.call_later(WATCH_DELAY_S, self._start)

    def close(self) -> None:
        self._watched = None
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._watched is not None:
            self.gone = True
            self._watched.cancel()


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A small JSON answer of the endpoints that are not hot."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")
