"""One request and its response on a connection: uvicorn's class, with its open cases handled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_log = logging.getLogger(__name__)


class Cycle(RequestResponseCycle):
    """Differs from uvicorn's class in four points. A response without a length to an HTTP/1.0 client ends with the
    connection, because that version has no chunks. A response before the end of the request's body is the last one of
    the connection (RFC 9112, 9.3), and the client gets time to read it. The connection is closed by `hang_up`, which
    disconnects clients that do not read. A response that is left unfinished on purpose is not logged."""

    def __init__(self, *, hang_up: Callable[[], None], linger: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._hang_up = hang_up
        self._linger = linger
        self._ends_early = False
        self._head = b""

    async def run_asgi(self, app: ASGI3Application) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as exc:  # the task's top: after any error, the client must not wait
            _log.error("the application failed on %r", self.scope.get("path", ""), exc_info=exc)
        finally:
            self.on_response = lambda: None  # breaks the reference cycle with the connection
        if self.response_complete or self.disconnected:
            return
        if self.response_started:
            self._hang_up()  # the client recognises the truncated body
        else:
            await self.send_500_response()

    async def send(self, message: ASGISendEvent) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._send_head(message)
        elif not self.response_complete:
            self._send_body(message)
        else:
            raise RuntimeError("a message was sent after the answer's end")

    def _send_head(self, message: Any) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.more_body:
            self._ends_early, self.keep_alive = True, False
        parts = [STATUS_LINE[message["status"]]]
        fields = [*self.default_headers, *message.get("headers", ())]
        for name, value in fields:
            if name == b"content-length":
                self.chunked_encoding, self.expected_content_length = False, int(value)
            elif name == b"connection":
                if value == b"close":
                    self.keep_alive = False
                continue
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        if self.chunked_encoding is None:
            self.chunked_encoding = self._may_chunk(message["status"])
            if self.chunked_encoding:
                parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n")
        head = b"".join(parts)
        if head.count(b"\n") > len(fields) + 4:  # a line break in a value would inject a header
            raise RuntimeError("a response header has a line break in it")
        self._head = head  # sent with the body's first part, as ASGI requires: one system call for both

    def _may_chunk(self, status: int) -> bool:
        return status not in (204, 304) and self.scope["method"] != "HEAD" and self.scope["http_version"] != "1.0"

    def _send_body(self, message: Any) -> None:
        data, more = message.get("body", b""), message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            data = b""
        elif self.chunked_encoding:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if not more:
                data += b"0\r\n\r\n"
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self.transport.write(data)
        if more:
            return
        self.response_complete = True
        self.message_event.set()
        if self._ends_early:
            self._linger()
        elif not self.keep_alive:
            self._hang_up()
        self.on_response()
