"""The client of model servers, over real sockets: framing, connections that are kept, and servers that break HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trustme
from slipstream_gateway.upstreams import http1
from slipstream_gateway.upstreams.http1 import Http1Client, Http1Response, NotHttp
from yarl import URL

pytestmark = pytest.mark.integration

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(
    handler: Handler, *, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
) -> AsyncIterator[Http1Client]:
    """A client of a server that gives each connection to `handler`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_tls)
    scheme = "https" if server_tls else "http"
    root = URL(f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}/")
    client = Http1Client(root, connect_timeout_s=5, tls=client_tls)
    try:
        yield client
    finally:
        client.close()
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(size)


def answering(*answers: bytes, then_close: bool = False) -> tuple[Handler, list[tuple[bytes, bytes]]]:
    """A handler that gives each connection's requests `answers` in order, and what it has received."""
    received: list[tuple[bytes, bytes]] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            received.append(await read_request(reader))
            writer.write(answer)
            await writer.drain()
        if not then_close:
            await reader.read()

    return handler, received


async def read_all(response: Http1Response) -> bytes:
    parts = []
    while data := await response.readany():
        parts.append(data)
    assert response.at_eof()
    return b"".join(parts)


async def ask(client: Http1Client, body: bytes = b"{}") -> bytes:
    return await read_all(await client.post("/v1/x", {"content-type": "application/json"}, body))


async def test_a_request_arrives_as_written_and_the_head_of_its_response_too() -> None:
    handler, received = answering(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n")
    async with serving(handler) as client:
        response = await client.post("/v1/x?a=b", {"x-request-id": "r-1", "traceparent": "é"}, b'{"a": 1}')
        assert (response.status, response.headers["retry-after"]) == (503, "7")
        assert await read_all(response) == b""
    head, body = received[0]
    assert body == b'{"a": 1}'
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/x?a=b HTTP/1.1"
    assert lines[1].startswith("host: localhost:")
    assert lines[2:5] == ["content-length: 8", "x-request-id: r-1", "traceparent: é"]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"ok"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n3;x=y\r\nay!\r\n0\r\nt: v\r\n\r\n",
            b"okay!",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
    ids=["length", "chunks", "announced", "no content"],
)
async def test_a_body_ends_where_its_framing_says_and_the_connection_is_used_again(answer: bytes, body: bytes) -> None:
    connections = 0
    handler, received = answering(answer, answer)

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await handler(reader, writer)

    async with serving(counted) as client:
        assert [await ask(client), await ask(client)] == [body, body]
    assert (connections, len(received)) == (1, 2)


async def test_a_body_without_framing_ends_with_the_connection() -> None:
    handler, _ = answering(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", then_close=True)
    async with serving(handler) as client:
        assert [await ask(client), await ask(client)] == [b"until the end"] * 2


async def test_a_server_that_says_close_is_not_asked_on_that_connection_again() -> None:
    handler, _ = answering(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    async with serving(handler) as client:
        assert [await ask(client), await ask(client)] == [b"ok", b"ok"]


@pytest.mark.parametrize("after_s", [0.0, 0.05])
async def test_a_kept_connection_that_the_server_closed_is_replaced(after_s: float) -> None:
    """Whether the client has noticed it or not."""
    handler, received = answering(OK, then_close=True)
    async with serving(handler) as client:
        for _ in range(3):
            assert await ask(client) == b"ok"
            await asyncio.sleep(after_s)
    assert len(received) == 3


async def test_a_new_connection_that_the_server_closes_is_not_tried_again() -> None:
    handler, received = answering(b"", then_close=True)
    async with serving(handler) as client:
        with pytest.raises(ConnectionResetError, match="the server closed the connection"):
            await ask(client)
    assert len(received) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * http1.MAX_HEAD_BYTES + b"\r\n",
    ],
    ids=["another protocol", "no header", "no length", "two lengths", "an endless head"],
)
async def test_what_is_not_http_is_refused_without_its_bytes(answer: bytes) -> None:
    handler, _ = answering(answer)
    async with serving(handler) as client:
        with pytest.raises(NotHttp) as caught:
            await ask(client)
        await asyncio.sleep(0.05)
        assert not client._all
    assert "SSH" not in str(caught.value)
    assert "yyy" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nno chunk",
    ],
    ids=["short", "no last chunk", "no chunk"],
)
async def test_a_body_that_breaks_off_fails_after_what_arrived(answer: bytes) -> None:
    handler, _ = answering(answer, then_close=True)
    async with serving(handler) as client:
        response = await client.post("/", {}, b"")
        assert await response.readany() == b"ok"
        with pytest.raises((ConnectionResetError, NotHttp)):
            await response.readany()
        assert not response.at_eof()
        response.close()


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    handler, received = answering(OK + OK)
    async with serving(handler) as client:
        assert await ask(client) == b"ok"
        assert await ask(client) == b"ok"  # on a new connection
    assert len(received) == 2


async def test_a_cancelled_request_closes_its_connection() -> None:
    ended = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()
        ended.set()

    async with serving(handler) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await ask(client)
        await asyncio.wait_for(ended.wait(), 5)
        await asyncio.sleep(0.05)
        assert not client._all


async def test_closing_a_response_before_its_end_closes_the_connection() -> None:
    handler, _ = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok")
    async with serving(handler) as client:
        response = await client.post("/", {}, b"")
        response.close()
        await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        assert not client._all


async def test_a_slow_reader_stops_the_server_and_gets_everything() -> None:
    size = 20_000_000
    written = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(b"x" * 100_000)
            written += 100_000
            await writer.drain()
        await reader.read()

    async with serving(handler) as client:
        response = await client.post("/", {}, b"")
        await asyncio.sleep(0.3)
        assert written < size
        assert len(await read_all(response)) == size
        assert await ask_after_keep(client) is True


async def ask_after_keep(client: Http1Client) -> bool:
    """Whether the connection is open and reads again."""
    [connection] = client._idle
    return connection.is_open and connection._transport is not None and connection._transport.is_reading()


async def test_a_large_body_is_sent_whole() -> None:
    handler, received = answering(OK)
    async with serving(handler) as client:
        assert await ask(client, b"x" * 10_000_000) == b"ok"
    assert len(received[0][1]) == 10_000_000


async def test_idle_connections_close_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "KEEP_ALIVE_S", 0.2)
    handler, _ = answering(OK, OK, OK)
    async with serving(handler) as client:
        await asyncio.gather(ask(client), ask(client))
        assert len(client._all) == 2
        await asyncio.sleep(0.15)
        assert await ask(client) == b"ok"
        await asyncio.sleep(0.1)
        assert len(client._all) == 1  # the one that was used last
        await asyncio.sleep(0.3)
        await asyncio.sleep(0.05)
        assert not client._all


@pytest.mark.parametrize("headers", [{"x": "a\r\nb: c"}, {"x\n": "a"}, {"x": "a\r"}])
async def test_a_line_break_in_a_header_is_not_sent(headers: dict[str, str]) -> None:
    handler, received = answering(OK)
    async with serving(handler) as client:
        with pytest.raises(ValueError, match="line break"):
            await client.post("/", headers, b"")
    assert not received


async def test_a_server_that_is_not_there_is_an_os_error() -> None:
    client = Http1Client(URL("http://127.0.0.1:9/"), connect_timeout_s=5)
    with pytest.raises(ConnectionRefusedError):
        await ask(client)
    client.close()


async def test_tls_is_verified_and_used() -> None:
    authority = trustme.CA()
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server_tls)
    trusting, stranger = ssl.create_default_context(), ssl.create_default_context()
    authority.configure_trust(trusting)
    handler, _ = answering(OK)
    async with serving(handler, server_tls=server_tls, client_tls=trusting) as client:
        assert await ask(client) == b"ok"
    async with serving(handler, server_tls=server_tls, client_tls=stranger) as client:
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(client)
