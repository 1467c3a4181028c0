"""A client for HTTP/1.1, on httptools: the part that requests to model servers need.

It is on the hot path: a request through the gateway takes a fifth less CPU time than with aiohttp's client
(`docs/decisions/http1-client.md`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import select
import socket
import ssl
from collections.abc import Mapping

import httptools
from aiohappyeyeballs import start_connection
from aiohappyeyeballs.types import AddrInfoType
from aiohttp.abc import AbstractResolver
from yarl import URL

KEEP_ALIVE_S = 30.0
MAX_HEAD_BYTES = 64 * 1024
DRAIN_S = 1.0
_NEXT_ADDRESS_S = 0.25  # as RFC 8305 recommends
_READ_BYTES = 32 * 1024  # at most about this much is buffered for a client that reads slowly
_INTERIM = frozenset({100, 102, 103, 104})
"""Responses that announce another one; the others below 200 would be waited for in vain."""
_CLOSED = "the server closed the connection"


class NotHttp(OSError):
    """The server's response is not HTTP/1.1. The message has no bytes of the response."""


class BrokenExchange(ConnectionResetError):
    """The connection broke after the request had been written: the server may have run it, and may have broken by
    it."""


class Http1Client:
    """Connections to one server, kept open for `KEEP_ALIVE_S` between requests; for one event loop.

    `root` is the server's URL; its path does not count. `tls` is None for a URL without TLS. `resolver` resolves the
    server's name; None: `getaddrinfo` does.
    """

    def __init__(
        self,
        root: URL,
        *,
        connect_timeout_s: float,
        tls: ssl.SSLContext | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._host, self._port = root.raw_host or "", root.port or 80
        self._host_line = f"host: {root.host_port_subcomponent}\r\n"
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._resolver = resolver
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Http1Response:
        """Sends the request; returns once the head of the response has arrived.

        Raises `OSError` if there is no connection, its subclasses `BrokenExchange` if the connection breaks,
        `TimeoutError` if none opens in time, and `NotHttp`; `ValueError` for a line break in a header. A written
        request is never written again here (RFC 9110, 9.2.2). Headers are Latin-1, as those of responses are: a
        client's bytes are passed on unchanged.
        """
        head = self._head(path, headers, len(body))
        return await (self._take() or await self._connect()).send(head, body)

    def close(self) -> None:
        """Closes all connections; responses that are not complete fail, and so do later requests."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self._all):
            connection.close()

    def keep(self, connection: _Connection) -> None:
        """Takes back a connection whose response is complete."""
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEEP_ALIVE_S, self._sweep)

    def forget(self, connection: _Connection) -> None:
        """Notes that a connection is closed."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _head(self, path: str, headers: Mapping[str, str], size: int) -> bytes:
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = f"POST {path} HTTP/1.1\r\n{self._host_line}content-length: {size}\r\n{''.join(lines)}\r\n"
        if head.count("\n") != len(lines) + 4 or head.count("\r") != len(lines) + 4:
            raise ValueError("a header contains a line break")
        return head.encode("latin-1")

    def _take(self) -> _Connection | None:
        """The connection that was used last, among those that the server has not closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and not connection.has_input():
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout_s):
            addresses = await self._addresses()
            connected = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, loop=loop)
            try:
                name = self._host.rstrip(".") if self._tls is not None else None
                _, connection = await loop.create_connection(
                    lambda: _Connection(self), sock=connected, ssl=self._tls, server_hostname=name
                )
            except BaseException:
                connected.close()
                raise
        self._all.add(connection)
        if self._is_closed:
            connection.close()
            raise ConnectionResetError("the client is closed")
        return connection

    async def _addresses(self) -> list[AddrInfoType]:
        """The server's addresses, as of `getaddrinfo`."""
        port = self._port
        try:
            version = ipaddress.ip_address(self._host).version
        except ValueError:
            pass
        else:
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (self._host, port))]
        if self._resolver is None:
            return [*await asyncio.get_running_loop().getaddrinfo(self._host, port, type=socket.SOCK_STREAM)]
        found = await self._resolver.resolve(self._host, port, socket.AF_UNSPEC)
        return [
            (one["family"], socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (one["host"], one["port"])) for one in found
        ]

    def _sweep(self) -> None:
        """Closes connections that were idle for `KEEP_ALIVE_S`, the oldest first."""
        loop = asyncio.get_running_loop()
        now_s, self._sweeper = loop.time(), None
        for connection in tuple(self._idle):
            if connection.idle_since_s + KEEP_ALIVE_S > now_s:
                self._sweeper = loop.call_at(connection.idle_since_s + KEEP_ALIVE_S, self._sweep)
                return
            connection.close()


class Http1Response:
    """A response whose head has arrived; also the reader of its body. `headers` have names in lower case."""

    __slots__ = (
        "_connection", "_error", "_is_dropped", "_parts", "_size", "_waiter", "headers", "is_complete", "status",
    )  # fmt: skip

    def __init__(self, connection: _Connection, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.is_complete = False
        self._is_dropped = False
        self._connection = connection
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: OSError | None = None

    @property
    def content(self) -> Http1Response:
        return self

    async def readany(self) -> bytes:
        """The next part of the body, at once if there is one; empty at the end. Raises `OSError` if the connection
        broke."""
        while not self._parts:
            if self.is_complete:
                return b""
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._size > _READ_BYTES and not self.is_complete:
            self._connection.resume()
        self._size = 0
        return data

    def at_eof(self) -> bool:
        return self.is_complete and not self._parts

    def close(self) -> None:
        """Closes the connection, unless the response is complete."""
        if not self.is_complete:
            self._connection.close()

    def release(self) -> None:
        """Keeps the connection if the response is complete within `DRAIN_S`; what arrives is dropped."""
        if not self.is_complete:
            self._is_dropped = True
            self._connection.drain()

    def feed(self, data: bytes) -> None:
        if self._is_dropped:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > _READ_BYTES:
            self._connection.pause()
        self._wake()

    def complete(self) -> None:
        self.is_complete = True
        self._wake()

    def fail(self, error: OSError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, client: Http1Client) -> None:
        self._poll = select.poll()
        self.idle_since_s = 0.0
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._headers: dict[str, str] = {}
        self._head_bytes = 0  # of a head, or of trailers
        self._has_body = False  # a part of a body was in the latest data
        self._drainer: asyncio.TimerHandle | None = None
        self._is_unasked = False  # a response has begun that answers no request
        self._began: asyncio.Future[Http1Response] | None = None  # while the head is awaited
        self._response: Http1Response | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def has_input(self) -> bool:
        """Whether anything has arrived that the event loop has not read yet. On an idle connection this is its end, or
        bytes without a request."""
        return bool(self._poll.poll(0))

    async def send(self, head: bytes, body: bytes) -> Http1Response:
        """Sends a request and waits for the head of its response."""
        transport = self._transport
        if transport is None:
            raise ConnectionResetError(_CLOSED)
        self._head_bytes = 0
        began: asyncio.Future[Http1Response] = asyncio.get_running_loop().create_future()
        self._began = began
        transport.write(head + body)
        try:
            return await began
        except asyncio.CancelledError:
            # A response that was complete before has left the connection to another request.
            if self._began is began or self._response is not None:
                self.close()
            raise
        except (NotHttp, ssl.SSLError):  # the server refuses the gateway's certificate after the handshake (RFC 8446)
            raise
        except OSError as exc:
            raise BrokenExchange(str(exc)) from exc

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def drain(self) -> None:
        """Closes the connection unless its response is complete in time."""
        self._drainer = asyncio.get_running_loop().call_later(DRAIN_S, self.close)
        self.resume()

    def pause(self) -> None:
        if self.is_open and self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_open and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    # asyncio's protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP or TLS, both are
        self._transport = transport
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        self._has_body = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._fail(NotHttp(type(exc).__name__))
            self.close()
            return
        if self._is_unasked:
            self.close()  # the next request must not get it
            return
        self._head_bytes = 0 if self._has_body else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fail(NotHttp(f"its headers exceed {MAX_HEAD_BYTES} bytes"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_draining()
        self._client.forget(self)
        if self._response is not None and exc is None and self._ends_with_connection():
            self._finish()
        else:
            self._fail(exc if isinstance(exc, OSError) else ConnectionResetError(_CLOSED))

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._is_unasked = self._began is None
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is None:  # trailers are ignored
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, {}
        status, began = self._parser.get_status_code(), self._began
        if began is None or status in _INTERIM:
            return
        if status < 200:  # 101 as well: no upgrade was requested
            self._fail(NotHttp(f"its status is {status}"))
            self.close()
            return
        self._began = None
        self._response = Http1Response(self, status, headers)
        if not began.done():
            began.set_result(self._response)

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        if self._response is not None:
            self._response.feed(body)

    def on_message_complete(self) -> None:
        if self._response is not None:
            self._finish()

    def _ends_with_connection(self) -> bool:
        """Whether nothing else says where the response's body ends (RFC 9112, 6.3)."""
        headers = self._response.headers if self._response is not None else {}
        return "content-length" not in headers and "transfer-encoding" not in headers

    def _finish(self) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        response.complete()
        self._stop_draining()
        transport = self._transport
        # With a part of the request unsent, the next one would wait behind it.
        is_clean = transport is not None and self.is_open and not transport.get_write_buffer_size()
        if is_clean and self._parser.should_keep_alive():
            self.resume()
            self._client.keep(self)
        else:
            self.close()

    def _stop_draining(self) -> None:
        if self._drainer is not None:
            self._drainer.cancel()
            self._drainer = None

    def _fail(self, error: OSError) -> None:
        began, response = self._began, self._response
        self._began = self._response = None
        if began is not None and not began.done():
            began.set_exception(error)
        if response is not None:
            response.fail(error)
