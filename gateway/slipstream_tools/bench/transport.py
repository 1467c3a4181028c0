"""One request over HTTP, recorded as bytes with the moment of their arrival; they are parsed when the answer has ended.

The client's CPU time must not bias the comparison where client and servers share a machine: aiohttp costs 5.1 ms for
an answer of 100 chunks, httpx 13.9 ms (docs/decisions/benchmark-client.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace

import aiohttp
from slipstream_core.errors import CommandError, SlipstreamError
from slipstream_core.hosts import is_http_url

CONNECT_TIMEOUT_S = 5.0
CONNECT_ATTEMPTS = 4
_BETWEEN_ATTEMPTS_S = 0.5


class AnswerBroken(SlipstreamError):
    """The connection ended, or the bytes are not HTTP, before the answer began."""


class Recording:
    """One answer as it came: times by `time.perf_counter`, `started_s` by the wall clock."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.chunks: list[tuple[float, bytes]] = []
        self.is_reused = False
        self.begin()

    def begin(self) -> None:
        self.started_s, self.began_s = time.time(), time.perf_counter()
        self.ended_s = self.began_s


class HttpTransport:
    """Keeps connections to one server open between requests. `url` may have a path, which goes before all others."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Raises `CommandError` where `url` is not an http(s) URL."""
        if not is_http_url(url):
            raise CommandError(f"--url must be http://host:port or https://host:port, got {url!r}", exit_code=2)
        self._url = url.rstrip("/")
        self._headers = {"accept-encoding": "identity", **headers}
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], recording: Recording
    ) -> None:
        """Send one request and fill `recording` until the answer ends, complete or not.

        Raises:
            AnswerBroken: there is no answer.
            CommandError: the server cannot be reached; that says nothing about the request.
        """
        self._session = self._session or self._open()
        attempt = 0
        while True:
            try:
                asked = self._session.request(
                    method, self._url + path, data=body or None, headers=headers, allow_redirects=False,
                    trace_request_ctx=recording,
                )  # fmt: skip
                async with asked as answer:
                    await _record(answer, recording)
                return
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                attempt += 1
                if attempt == CONNECT_ATTEMPTS:
                    raise CommandError(f"{self._url}: cannot be reached: {_why(error)}") from error
                await asyncio.sleep(_BETWEEN_ATTEMPTS_S)
            except aiohttp.ClientResponseError as error:
                raise AnswerBroken(f"the answer is not HTTP: {error.message}") from error
            except aiohttp.ClientConnectionError as error:
                if not recording.is_reused:  # else the server closed a connection that was kept: take another
                    raise AnswerBroken("the connection was closed without an answer") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_connected)
        trace.on_connection_reuseconn.append(_reused)
        return aiohttp.ClientSession(
            headers=self._headers,
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            trace_configs=[trace],
        )


async def _record(answer: aiohttp.ClientResponse, recording: Recording) -> None:
    recording.status = answer.status
    recording.headers = {name.lower(): value for name, value in answer.headers.items()}
    try:
        async for data in answer.content.iter_any():
            recording.chunks.append((time.perf_counter(), data))
    except aiohttp.ClientPayloadError:
        pass  # its reader decides whether the answer is complete
    recording.ended_s = time.perf_counter()


async def _connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    """Restart the clock: an answer's time excludes the connection's, because clients keep connections open."""
    recording: Recording = context.trace_request_ctx
    recording.is_reused = False
    recording.begin()


async def _reused(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    recording: Recording = context.trace_request_ctx
    recording.is_reused = True


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
