"""Calls vLLM's OpenAI server in this process: its ASGI application without a socket.

Structured output, tools, log-probabilities, the Responses API, and the status and message of each error are vLLM's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from slipstream_engine.contract.protocol import OnReply, OpenAiEndpoint, OpenAiRequest, Reply

_PATHS = {
    OpenAiEndpoint.CHAT: "/v1/chat/completions",
    OpenAiEndpoint.COMPLETION: "/v1/completions",
    OpenAiEndpoint.RESPONSES: "/v1/responses",
}
_EVENT_END = (b"\n\n", b"\r\n\r\n")
Message = MutableMapping[str, Any]


class OpenAiCall:
    """One request to the application. `cancel` signals a disconnected client. `status` is the status of the reply, 0
    before it starts. `ended` is True once the reply is complete."""

    def __init__(self, app: Callable[..., Any], request: OpenAiRequest, on_reply: OnReply) -> None:
        self._app = app
        self._path = _PATHS[request.endpoint]
        self._body = bytes(request.body)
        self._on_reply = on_reply
        self.status = 0
        self.ended = False
        self._taken = False
        self._gone = asyncio.Event()
        self._whole = True
        self._held = b""

    async def run(self) -> None:
        """Run the application. Its exceptions propagate."""
        await self._app(self._scope(), self._receive, self._send)

    def cancel(self) -> None:
        """Disconnect, so that the application aborts the generation."""
        self._gone.set()

    def _scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            # Below 2.4, a streaming response monitors the disconnect; from 2.4 on, it waits for a failing send.
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"triton"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": {},
        }

    async def _receive(self) -> Message:
        if not self._taken:
            self._taken = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._whole = not dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
            return
        self.ended = last = not message.get("more_body", False)
        self._held += message.get("body", b"")
        if last or (not self._whole and self._held.endswith(_EVENT_END)):
            data, self._held = self._held, b""
            self._on_reply(Reply(status=self.status, data=data, last=last))
