"""An OpenAI-compatible upstream that streams numbered words at a pace, in a process of its own.

The request's `max_tokens` says how many words, `seed` how many milliseconds lie between two, and `top_k` how many
kilobytes long each is (0: just itself). So every stream has one right text, and hundreds of them cost little. What is
not streamed gets one short answer at once. `GET /state` tells what the server sees of its clients.
"""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import socket
import time
import urllib.request
from typing import Any, Self

import httptools
import msgspec
import uvloop

from tests.e2e.chaos.processes import end_with_parent

START_S = 30.0
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_WORDS_AT_ONCE = 8  # of a stream without a pace
_ID = {"id": "chatcmpl-paced", "object": "chat.completion.chunk", "created": 1, "model": "paced"}


class State(msgspec.Struct, kw_only=True):
    """Streams that run now, that ended whole, and that their client left; the moments, by `time.monotonic`, of the
    last departures."""

    active: int = 0
    whole: int = 0
    left: int = 0
    left_at_s: list[float] = []


def text_of(words: int, kilobytes: int = 0) -> str:
    """The one right text of a stream."""
    return "".join(_word(index, kilobytes) for index in range(words))


def _word(index: int, kilobytes: int) -> str:
    return f"w{index} " + "x" * (1024 * kilobytes)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(delta: dict[str, str], finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return _chunk(b"data: " + json.dumps({**_ID, "choices": choices, **more}).encode() + b"\n\n")


@functools.lru_cache(maxsize=1024)
def _word_event(index: int, kilobytes: int) -> bytes:
    return _event({"content": _word(index, kilobytes)})


def _reply(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


_MESSAGE = {"role": "assistant", "content": "The customer reported a late delivery and asked to be called back."}
_WHOLE = _reply(
    {
        **_ID,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32},
    }
)


class _Connection(asyncio.Protocol):
    """One client. Writing waits while the client does not read, as any server's does."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._stream: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._begin()

    def _begin(self) -> None:
        self._parser, self._body, self._path = httptools.HttpRequestParser(self), b"", b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._stream is not None and not self._stream.done():
            self._state.left += 1
            self._state.left_at_s = [*self._state.left_at_s[-99:], time.monotonic()]
            self._stream.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path, body = self._path, self._body
        self._path, self._body = b"", b""
        if not path.endswith(b"/completions"):
            self._transport.write(_reply({"object": "list", "data": [], **msgspec.to_builtins(self._state)}))
        elif (request := json.loads(body)).get("stream"):
            self._stream = asyncio.ensure_future(self._send(request))
        else:
            self._transport.write(_WHOLE)

    async def _send(self, request: dict[str, Any]) -> None:
        words, gap_s, kilobytes = request["max_tokens"], request.get("seed", 0) / 1e3, request.get("top_k") or 0
        self._state.active += 1
        try:
            self._transport.write(_HEAD + _event({"role": "assistant", "content": ""}))
            step = 1 if gap_s or kilobytes else _WORDS_AT_ONCE
            for start in range(0, words, step):
                await asyncio.sleep(gap_s)
                await self._room.wait()
                last = min(start + step, words)
                self._transport.write(b"".join(_word_event(index, kilobytes) for index in range(start, last)))
            usage = {"prompt_tokens": 1, "completion_tokens": words, "total_tokens": words + 1}
            end = _event({}, "stop") + _chunk(b"data: " + json.dumps({**_ID, "choices": [], "usage": usage}).encode())
            self._transport.write(end + _chunk(b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")
            self._state.whole += 1
        finally:
            self._state.active -= 1


def _serve(listener: socket.socket) -> None:
    end_with_parent()

    async def run() -> None:
        state = State()
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(state), sock=listener, backlog=4096)
        await server.serve_forever()

    uvloop.run(run())


class PacedServer:
    """The server as a child process; `with` ends it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._process = multiprocessing.get_context("fork").Process(target=_serve, args=(self._listener,), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._listener.close()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        self._process.join(START_S)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def state(self) -> State:
        with urllib.request.urlopen(f"{self.url}/state", timeout=START_S) as response:
            return msgspec.json.decode(response.read(), type=State)
