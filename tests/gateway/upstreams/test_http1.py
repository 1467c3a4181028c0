"""The client of model servers, over real sockets: framing, connections that are kept, and servers that break HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trustme
from aiohttp.abc import AbstractResolver, ResolveResult
from slipstream_gateway.upstreams import http1
from slipstream_gateway.upstreams.http1 import Http1Client, Http1Response, NotHttp
from yarl import URL

from tests.support.polling import PATIENCE_S, soon

pytestmark = pytest.mark.integration

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Resolver(AbstractResolver):
    def __init__(self, *addresses: tuple[str, socket.AddressFamily]) -> None:
        self.asked: list[tuple[str, socket.AddressFamily]] = []
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append((host, family))
        return [
            ResolveResult(hostname=host, host=address, port=port, family=found, proto=0, flags=0)
            for address, found in self._addresses
        ]

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def serving(
    handler: Handler,
    *,
    host: str = "localhost",
    server_tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Http1Client]:
    """A client of a server that gives each connection to `handler`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_tls)
    scheme = "https" if server_tls else "http"
    root = URL(f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}/")
    local = Resolver(("127.0.0.1", socket.AF_INET))
    client = Http1Client(root, connect_timeout_s=5, tls=client_tls, resolver=local)
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
    lines = head.decode("latin-1").split("\r\n")
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
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
            + OK,
            b"ok",
        ),
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
        await soon(lambda: not client._all, "no connection")
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
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        begun.set()
        await reader.read()
        ended.set()

    async with serving(handler) as client, asyncio.timeout(PATIENCE_S):
        request = asyncio.create_task(ask(client))
        await begun.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await ended.wait()
        await soon(lambda: not client._all, "no connection")


async def test_closing_a_response_before_its_end_closes_the_connection() -> None:
    handler, _ = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok")
    async with serving(handler) as client:
        response = await client.post("/", {}, b"")
        response.close()
        await soon(lambda: not client._all, "no connection")


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
    monkeypatch.setattr(http1, "KEEP_ALIVE_S", 1.0)
    handler, _ = answering(OK, OK, OK)
    async with serving(handler) as client:
        await asyncio.gather(ask(client), ask(client))
        assert len(client._all) == 2
        await asyncio.sleep(0.5)
        assert await ask(client) == b"ok"
        await soon(lambda: len(client._all) == 1, "the connection that was used last alone is open")
        await soon(lambda: not client._all, "no connection")


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
    for host in ("localhost", "localhost."):  # a dot at the end: the name is whole
        async with serving(handler, host=host, server_tls=server_tls, client_tls=trusting) as client:
            assert await ask(client) == b"ok"
    async with serving(handler, server_tls=server_tls, client_tls=stranger) as client:
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(client)


async def test_several_addresses_are_tried_without_waiting_for_the_first() -> None:
    """The first drops everything: a listener whose queue is full."""
    handler, _ = answering(OK)
    with socket.socket() as deaf, contextlib.ExitStack() as callers:
        deaf.bind(("127.0.0.2", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        for _ in range(3):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.2", port))
        server = await asyncio.start_server(handler, "127.0.0.1", port)
        resolver = Resolver(("127.0.0.2", socket.AF_INET), ("127.0.0.1", socket.AF_INET))
        client = Http1Client(URL(f"http://models.test:{port}/"), connect_timeout_s=5, resolver=resolver)
        async with asyncio.timeout(2):
            assert await ask(client) == b"ok"
        client.close()
        server.close()


async def test_addresses_of_both_families_are_asked_for_and_ipv6_is_in_brackets() -> None:
    handler, received = answering(OK)
    server = await asyncio.start_server(handler, "::1", 0)
    port = server.sockets[0].getsockname()[1]
    resolver = Resolver(("::1", socket.AF_INET6))
    for host in ("[::1]", "models.test"):
        client = Http1Client(URL(f"http://{host}:{port}/"), connect_timeout_s=5, resolver=resolver)
        assert await ask(client) == b"ok"
        client.close()
    server.close()
    assert [head.split(b"\r\n")[1] for head, _ in received] == [
        f"host: [::1]:{port}".encode(),
        f"host: models.test:{port}".encode(),
    ]
    assert resolver.asked == [("models.test", socket.AF_UNSPEC)]  # an address is not resolved


@pytest.mark.parametrize("worked_s", [0.0, 0.3])
async def test_a_request_that_a_server_has_read_is_not_sent_again(worked_s: float) -> None:
    received = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await read_request(reader)
        received += 1
        writer.write(OK)
        await read_request(reader)
        received += 1
        await asyncio.sleep(worked_s)

    async with serving(handler) as client:
        assert await ask(client) == b"ok"
        with pytest.raises(http1.BrokenExchange):
            await ask(client)
    assert received == 2


async def test_a_connection_that_ended_while_the_event_loop_was_busy_is_not_used() -> None:
    accepted = []

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            accepted.append(listener.accept()[0])
            accepted[-1].recv(10_000)
            accepted[-1].sendall(OK)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = Http1Client(URL(f"http://127.0.0.1:{listener.getsockname()[1]}/"), connect_timeout_s=5)
        assert await ask(client) == b"ok"
        [connection] = client._idle
        accepted[0].close()
        while not connection.has_input():
            time.sleep(0.001)  # noqa: ASYNC251 - the event loop must not run meanwhile
        assert await ask(client) == b"ok"
        client.close()
        thread.join()
    assert len(accepted) == 2


async def test_trailers_are_not_in_the_next_response_and_are_bounded() -> None:
    trailers = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nretry-after: 99\r\n\r\n"
    handler, _ = answering(trailers, OK)
    async with serving(handler) as client:
        assert await ask(client) == b"x"
        assert "retry-after" not in (await client.post("/", {}, b"")).headers

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(trailers[:-2])
        while not writer.is_closing():
            writer.write(b"x-t: v\r\n" * 100)
            await writer.drain()

    async with serving(endless) as client:
        response = await client.post("/", {}, b"")
        assert await response.readany() == b"x"
        with pytest.raises(NotHttp, match="its headers exceed"):
            await response.readany()


async def test_a_released_response_may_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "DRAIN_S", 0.3)
    handler, _ = answering(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
    async with serving(handler) as client:
        response = await client.post("/", {}, b"")
        response.release()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(client._all) == 1
        assert not client._idle
        await soon(lambda: not client._all, "no connection")


async def test_an_answer_before_the_end_of_the_request_ends_the_connection() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 Slow down\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(5)

    async with serving(handler) as client:
        response = await client.post("/", {}, b"x" * 20_000_000)
        assert response.status == 429
        await soon(lambda: not client._all, "no connection")
        assert not client._idle


async def test_a_closed_client_opens_nothing() -> None:
    handler, received = answering(OK, b"")
    async with serving(handler) as client:
        assert await ask(client) == b"ok"
        running = asyncio.ensure_future(ask(client))
        await soon(lambda: len(received) == 2, "the second request")
        client.close()
        with pytest.raises(ConnectionResetError):
            await running
        with pytest.raises(ConnectionResetError, match="the client is closed"):
            await ask(client)
        await soon(lambda: not client._all, "no connection")
    assert len(received) == 2


async def test_a_cancelled_request_leaves_the_connection_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its response is complete, the next request has the connection, and only then its task wakes up, cancelled."""
    handler, received = answering(OK, OK)
    following: list[asyncio.Future[Http1Response]] = []
    finish = http1._Connection._finish

    def finish_and_go_on(connection: http1._Connection) -> None:
        finish(connection)
        if not following:
            first.cancel()
            client._idle.remove(connection)
            connection._began = asyncio.get_running_loop().create_future()  # as `send` does
            assert connection._transport is not None
            connection._transport.write(client._head("/", {}, 0))
            following.append(connection._began)

    monkeypatch.setattr(http1._Connection, "_finish", finish_and_go_on)
    async with serving(handler) as client:
        first = asyncio.ensure_future(ask(client))
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await following[0]).status == 200
    assert len(received) == 2


@pytest.mark.parametrize("status", ["000", "001", "099", "101", "105", "199"])
@pytest.mark.parametrize("rest", ["content-length: 2\r\n\r\nok", "upgrade: h2c\r\nconnection: upgrade\r\n\r\n", "\r\n"])
async def test_a_status_below_200_that_announces_nothing_is_refused_at_once(status: str, rest: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(f"HTTP/1.1 {status} Odd\r\n{rest}".encode())
        await reader.read()  # until the client leaves

    async with serving(handler) as client:
        with pytest.raises(NotHttp):
            async with asyncio.timeout(PATIENCE_S / 2):
                await ask(client)
