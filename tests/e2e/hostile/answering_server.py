"""An OpenAI-compatible upstream for requests that nobody vetted: whatever it is asked, it answers two words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httptools

from tests.gateway.scripted_responses import ResponseEvents, response

_ID = {"id": "chatcmpl-any", "created": 1, "model": "acme"}
_USAGE = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}


class Seen:
    """Bodies and headers that came through the gateway, the last of each, and how many there were."""

    def __init__(self) -> None:
        self.count = 0
        self.body = b""
        self.fields: list[tuple[bytes, bytes]] = []


class _Connection(asyncio.Protocol):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body, self._url = b"", b""
        self._fields: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._url.endswith((b"/completions", b"/responses")):
            self._reply(b"application/json", b'{"object": "list", "data": []}')
            return
        self._seen.count += 1
        self._seen.body, self._seen.fields = self._body, self._fields
        asked = json.loads(self._body)
        chat = self._url.endswith(b"/chat/completions")
        if self._url.endswith(b"/responses"):
            self._respond(asked)
        elif asked.get("stream"):
            self._reply(b"text/event-stream", _events(chat))
        else:
            self._reply(b"application/json", _whole(chat, asked.get("n") or 1))

    def _respond(self, asked: dict[str, Any]) -> None:
        events = ResponseEvents(asked, b"\n\n")
        if asked.get("stream"):
            told = [*events.start(), events.token("one "), events.token("two"), events.close(_USAGE)]
            self._reply(b"text/event-stream", b"".join(told))
        else:
            self._reply(b"application/json", json.dumps(response(asked, "one two", _USAGE, "completed")).encode())

    def _reply(self, kind: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
        self._transport.write(head + body)


def _events(chat: bool) -> bytes:
    kind = "chat.completion.chunk" if chat else "text_completion"

    def choice(text: str, finish: str | None) -> dict[str, Any]:
        said = {"delta": {"content": text} if text else {}} if chat else {"text": text}
        return {"index": 0, "finish_reason": finish, **said}

    steps = [[choice("one ", None)], [choice("two", None)], [choice("", "stop")]]
    events = [{**_ID, "object": kind, "choices": choices} for choices in steps]
    events.append({**_ID, "object": kind, "choices": [], "usage": _USAGE})
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def _whole(chat: bool, count: int) -> bytes:
    said = {"message": {"role": "assistant", "content": "one two"}} if chat else {"text": "one two"}
    choices = [{"index": index, "finish_reason": "stop", **said} for index in range(count)]
    kind = "chat.completion" if chat else "text_completion"
    return json.dumps({**_ID, "object": kind, "choices": choices, "usage": _USAGE}).encode()


@asynccontextmanager
async def answering_server() -> AsyncIterator[tuple[str, Seen]]:
    """The server's URL, and what it saw."""
    seen = Seen()
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(seen), "127.0.0.1", 0, backlog=4096)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()
