"""uvicorn's HTTP protocol with bounds on what a client may hold before a request is admitted.

The bounds cost a request that comes whole a few comparisons; timers start only for what comes in pieces.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
SPARE_CONNECTIONS = 1024
"""Open connections beyond the requests that run and wait: idle clients, probes and metrics."""

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 41\r\nconnection: close\r\n\r\n"
    b"The request's head is over 65536 bytes.\r\n"
)


class BoundedHttp(HttpToolsProtocol):
    """Refuses heads over `MAX_HEAD_BYTES`, closes connections whose head takes longer than `head_timeout_s` or that
    come when twice uvicorn's limit are open. At the limit itself uvicorn answers 503."""

    head_timeout_s = HEAD_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head_bytes = 0  # of the head so far, in the pieces before this one
        self._piece_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()
            return
        self._head_timer = self.loop.call_later(self.head_timeout_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._piece_bytes = len(data)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._stop_head_timer()
        # The last piece may hold the body too, so only a large one is looked into.
        if self._head_bytes + self._piece_bytes > MAX_HEAD_BYTES and self._size() > MAX_HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head is too large")  # ends the parser, which calls `send_400_response`
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._in_head = False
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse_head(self) -> None:
        self._in_head = False
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
