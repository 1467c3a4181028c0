"""A canned OpenAI-compatible server for measuring what a gateway adds: one asyncio protocol, no framework.

`"stream": true` gets `max_tokens` chunks at once, or `PACE_S` apart where `max_tokens` is `PACED_TOKENS`; everything
else gets one JSON answer.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools
import uvloop

PACED_TOKENS = 61
PACE_S = 0.02
_USAGE = {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32}
_HEAD = {"id": "chatcmpl-canned", "created": 1, "model": "canned"}
_TEXT = "The customer reported a late delivery and asked to be called back."


def _whole() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop"}
    body = json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = json.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}).encode()
    return _chunk(b"data: " + body + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


WHOLE = _whole()
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE, TOKEN = _event({"role": "assistant", "content": ""}), _event({"content": "token "})
END = _event({}, "stop") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._stream: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        request = json.loads(body) if b'"stream"' in body else {}
        if not request.get("stream"):
            self._transport.write(WHOLE)
            return
        self._stream = asyncio.ensure_future(self._send(request["max_tokens"]))

    async def _send(self, tokens: int) -> None:
        self._transport.write(STREAM + ROLE)
        if tokens == PACED_TOKENS:
            for _ in range(tokens):
                await asyncio.sleep(PACE_S)
                self._transport.write(TOKEN)
        else:
            for start in range(0, tokens, 8):
                self._transport.write(TOKEN * min(8, tokens - start))
                await asyncio.sleep(0)
        self._transport.write(END)


def serve(port: int) -> None:
    """Serves on the loopback until the process ends."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    uvloop.run(run())
