"""One request to an ASGI application, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from slipstream_engine.pipe.messages import HALTED, UNFINISHED, Piece, PipedRequest, response_head

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
_FAILED = b'{"error": {"message": "The engine failed.", "type": "server_error", "param": null, "code": null}}'


class Call:
    """`on_piece`, which must not block, receives the parts of the response. `cancel` is the client's disconnection."""

    def __init__(self, application: Application, request: PipedRequest, on_piece: Callable[[Piece], None]) -> None:
        self._application, self._request, self._on_piece = application, request, on_piece
        self._gone = asyncio.Event()
        self._taken = self._begun = self._ended = False
        self._head = b""

    async def run(self) -> None:
        """Run the application. A response that it leaves unfinished ends in an error; its exceptions propagate."""
        try:
            await self._application(self._scope(), self._receive, self._send)
        finally:
            self._end(self._unfinished())

    def cancel(self) -> None:
        self._gone.set()

    def halt(self) -> None:
        """End the response with the error `HALTED`, unless it is complete, and disconnect the client."""
        self._end(Piece(data=b"", last=True, error=HALTED))
        self._gone.set()

    def _end(self, piece: Piece) -> None:
        if not self._ended:
            self._ended = True
            self._on_piece(piece)

    def _unfinished(self) -> Piece:
        if self._gone.is_set():  # the client reads nothing more
            return Piece(data=b"", last=True)
        if self._begun:
            return Piece(data=b"", last=True, error=UNFINISHED)
        return Piece(data=response_head(500, [(b"content-type", b"application/json")]) + _FAILED, last=True)

    def _scope(self) -> Message:
        path, _, query = self._request.path.partition("?")
        headers = {"host": "triton", "content-type": "application/json", **self._request.headers}
        return {
            "type": "http",
            # Below 2.4, a streaming response monitors the disconnect; from 2.4 on, it waits for a failing send.
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 0),  # Triton controls access: all of its clients may change the engine's limit
            "server": ("127.0.0.1", 0),
            "state": {},
        }

    async def _receive(self) -> Message:
        if not self._taken:
            self._taken = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = response_head(message["status"], message["headers"])
            return
        last = not message.get("more_body", False)
        data, self._head = self._head + message.get("body", b""), b""
        if last:
            self._end(Piece(data=data, last=True))
        elif data and not self._ended:
            self._begun = True
            self._on_piece(Piece(data=data, last=False))
