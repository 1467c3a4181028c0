"""HTTP/1.1 for a bench: bytes in, each with the moment of its arrival, and nothing else while an answer runs.

General clients spend several hundred microseconds of CPU on a chunk. On a machine that serves as well, that time is the
server's loss, and the mode with more chunks pays more of it: the comparison would be biased.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httptools
from slipstream_core.errors import CommandError, SlipstreamError

CONNECT_TIMEOUT_S = 5.0
CONNECT_ATTEMPTS = 4
_BETWEEN_ATTEMPTS_S = 0.5


class AnswerBroken(SlipstreamError):
    """The connection ended or the bytes are no HTTP before the answer was whole."""


class Recording:
    """One answer as it came: times by `time.perf_counter`, `started_s` by the wall clock."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.chunks: list[tuple[float, bytes]] = []
        self.started_s, self.began_s = time.time(), time.perf_counter()
        self.ended_s = self.began_s


class HttpTransport:
    """Keeps connections to one server open between requests. `url` may have a path, which goes before all others."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Raises `CommandError` where `url` is no http(s) address."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise CommandError(f"--url: {error}, got {url!r}", exit_code=2) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(f"--url must be http://host:port or https://host:port, got {url!r}", exit_code=2)
        self._url = url
        self._host, self._prefix = parts.hostname, parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        self._headers = {"host": parts.netloc.rpartition("@")[2], "accept-encoding": "identity", **headers}
        self._idle: list[_Connection] = []

    async def request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], recording: Recording
    ) -> None:
        """Send one request and fill `recording` until the answer is whole.

        Raises:
            AnswerBroken: the answer has no end.
            CommandError: nobody listens there any more; that says nothing of the request.
        """
        data = self._encode(method, path, body, headers)
        while self._idle:
            connection = self._idle.pop()
            if connection.open and await self._exchange(connection, data, recording):
                return
        # A fresh connection is not counted into the answer's time: clients keep theirs open.
        connection = await self._connect()
        recording.started_s, recording.began_s = time.time(), time.perf_counter()
        if not await self._exchange(connection, data, recording):
            raise AnswerBroken("the connection was closed without an answer")

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    async def _exchange(self, connection: _Connection, data: bytes, recording: Recording) -> bool:
        """False when the connection ended before the answer began."""
        try:
            begun = await connection.exchange(data, recording)
        except BaseException:  # also a timeout: what is left of the answer must not meet the next request
            connection.close()
            raise
        if begun and connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return begun

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        why = ""
        for attempt in range(CONNECT_ATTEMPTS):
            await asyncio.sleep(_BETWEEN_ATTEMPTS_S if attempt else 0)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    made = loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
                    _, connection = await made
                    return connection
            except OSError as error:  # also a timeout and a certificate that does not fit
                why = error.strerror or str(error) or type(error).__name__
        raise CommandError(f"{self._url}: cannot be reached: {why}")

    def _encode(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        fields = {**self._headers, **headers, "content-length": str(len(body))}
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


class _Connection(asyncio.Protocol):
    """One connection; one answer at a time. httptools calls the `on_` methods."""

    def __init__(self) -> None:
        self.open = False
        self.reusable = False
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._recording = Recording()
        self._ended: asyncio.Future[bool] | None = None
        self._moment_s = 0.0

    async def exchange(self, data: bytes, recording: Recording) -> bool:
        """Send `data` and fill `recording`. False when the connection ended before the answer began.

        Raises:
            AnswerBroken: the answer is no HTTP.
        """
        self._recording, self._parser = recording, httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self.reusable = False
        if self._transport is not None:
            self._transport.write(data)
        return await self._ended

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = transport, True  # type: ignore[assignment]  # a stream's transport

    def connection_lost(self, error: Exception | None) -> None:
        """Ends an answer that has begun, too: whether it was whole is for its reader to say."""
        self.open = self.reusable = False
        self._recording.ended_s = time.perf_counter()
        self._end(self._recording.status is not None)

    def data_received(self, data: bytes) -> None:
        self._moment_s = time.perf_counter()
        try:
            if self._parser is not None:
                self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._ended is not None and not self._ended.done():
                self._ended.set_exception(AnswerBroken(f"the answer is no HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._recording.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._parser is not None:
            self._recording.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._recording.chunks.append((self._moment_s, data))

    def on_message_complete(self) -> None:
        self._recording.ended_s = self._moment_s
        self.reusable = self._parser is not None and self._parser.should_keep_alive()
        self._end(True)

    def _end(self, begun: bool) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(begun)
