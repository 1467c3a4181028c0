"""One request and its response on a connection: uvicorn's class, with its open cases handled."""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from slipstream_gateway.api.http import disconnected
from slipstream_gateway.api.port_router import Asgi

_log = logging.getLogger(__name__)


class Cycle(RequestResponseCycle):
    """Differs from uvicorn's class in four points. A response without a length to an HTTP/1.0 client ends with the
    connection, because that version has no chunks. A response before the end of the request's body is the last one of
    the connection (RFC 9112, 9.3). `on_response`, and not the cycle, closes the connection: clients may not read. A
    response that is left unfinished on purpose is not logged."""

    ends_early = False
    """Whether the response came before the end of the request's body."""
    _head = b""

    def disconnect(self) -> None:
        """Ends the request without a response: `receive` returns `http.disconnect`, `send` has no effect."""
        self.disconnected = True
        self.message_event.set()
        disconnected(self.scope)  # type: ignore[arg-type]  # the types are Starlette's

    async def run_asgi(self, app: Asgi) -> None:  # type: ignore[override]  # the types are Starlette's
        try:
            await app(self.scope, self.receive, self.send)  # type: ignore[arg-type]
        except BaseException as exc:  # the task's top: after any error, the client must not wait
            _log.error("the application failed on %r", self.scope.get("path", ""), exc_info=exc)
        if not self.response_started and not self.disconnected:
            await self.send_500_response()
        elif not self.response_complete and not self.disconnected:
            self.on_response()  # the client recognises the truncated body
        self.on_response = lambda: None  # breaks the reference cycle with the connection

    async def send(self, message: Any) -> None:
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
            self.ends_early, self.keep_alive = True, False
        parts = [STATUS_LINE[message["status"]]]
        fields = [*self.default_headers, *message.get("headers", ())]
        for name, value in fields:
            if name == b"content-length":
                self.chunked_encoding = False
            elif name == b"connection":
                if value == b"close":
                    self.keep_alive = False
                continue
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["http_version"] != "1.0":
            self.chunked_encoding = message["status"] not in (204, 304) and self.scope["method"] != "HEAD"
            if self.chunked_encoding:
                parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n")
        head = b"".join(parts)
        if head.count(b"\n") > len(fields) + 4:  # a line break in a value would inject a header
            raise RuntimeError("a response header has a line break in it")
        self._head = head  # sent with the body's first part, as ASGI requires: one system call for both

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
        if not more:
            self.response_complete = True
            self.message_event.set()
            self.on_response()
