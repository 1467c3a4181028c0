"""A load for OpenAI-compatible servers: closed-loop requests and streams over keep-alive connections."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, NamedTuple

import httptools

_PROMPT = "Summarize this support call for the CRM: reason for contact, agent actions, outcome, next step. " * 4
_TOKEN = b'"content": "w'


class Answer(NamedTuple):
    """One answer: its status, when its first token came after the request, gaps between reads with tokens."""

    status: int
    seconds: float
    first_s: float | None
    gaps_s: list[float]
    tokens: int


class Client(asyncio.Protocol):
    """One connection that asks one question at a time."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._done: asyncio.Future[Answer] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        joined = self._tail + data  # TCP may cut inside a token
        count = joined.count(_TOKEN)
        self._tail = joined[-(len(_TOKEN) - 1) :]
        if count:
            now = time.perf_counter()
            if self._first_s is None:
                self._first_s = now - self._start
            else:
                self._gaps_s.append((now - self._last) / count)
            self._last = now
            self._tokens += count
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        assert self._done is not None
        seconds = time.perf_counter() - self._start
        status = self._parser.get_status_code()
        self._done.set_result(Answer(status, seconds, self._first_s, self._gaps_s, self._tokens))

    async def ask(self, request: bytes) -> Answer:
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._tail, self._tokens = b"", 0
        self._first_s: float | None = None
        self._gaps_s: list[float] = []
        self._start = self._last = time.perf_counter()
        self._transport.write(request)
        return await asyncio.wait_for(self._done, 60)

    def close(self) -> None:
        self._transport.close()


def request_bytes(*, model: str, stream: bool, max_tokens: int, key: str = "", pace_ms: int = 0) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": _PROMPT}], "max_tokens": max_tokens}
    body["seed"] = pace_ms  # as the paced server reads it
    raw = json.dumps({**body, "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n"
    access = f"authorization: Bearer {key}\r\n" if key else ""
    return f"{head}{access}\r\n".encode() + raw


WHOLE = request_bytes(model="canned", stream=False, max_tokens=64)


class Result(NamedTuple):
    """What one run came to; `bad` counts answers that were not whole."""

    answers: list[Answer]
    seconds: float
    bad: int

    @property
    def per_s(self) -> float:
        return len(self.answers) / self.seconds

    @property
    def chunks_per_s(self) -> float:
        return sum(answer.tokens for answer in self.answers) / self.seconds

    def took_ms(self) -> list[float]:
        return [1e3 * answer.seconds for answer in self.answers]


async def run(
    port: int, request: bytes, *, connections: int, seconds: float, rounds: int = 0, tokens: int = 0
) -> Result:
    """`connections` at once, each asking for `seconds`, or `rounds` times where given; an answer is whole with
    status 200 and `tokens` tokens."""
    loop, answers, bad = asyncio.get_running_loop(), [], 0
    start = time.perf_counter()

    async def one() -> None:
        nonlocal bad
        _, client = await loop.create_connection(Client, "127.0.0.1", port)
        asked = 0
        while asked < rounds if rounds else time.perf_counter() < start + seconds:
            asked += 1
            try:
                answer = await client.ask(request)
            except (ConnectionError, TimeoutError):
                bad += 1
                break
            bad += answer.status != 200 or answer.tokens != tokens
            answers.append(answer)
        client.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return Result(answers, time.perf_counter() - start, bad)
