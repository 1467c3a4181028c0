"""What one connection may hold, how slow it may be, and how it ends."""

from __future__ import annotations

import errno
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import pytest
import uvicorn
from slipstream_gateway.server.bounds import Bounds, tune
from slipstream_gateway.server.leaving import Leaving
from slipstream_gateway.server.protocol import bounded_http

from tests.support.polling import PATIENCE_S, eventually

HASTY = Bounds(
    head_s=0.4, body_grace_s=0.3, body_rate_bytes=1000, bodies_bytes=200_000, flush_s=0.3, linger_s=0.3, pipelined=4,
    probes=frozenset({b"/health/live"}),
)  # fmt: skip
# For what is about no timer: a busy machine's client may take longer than HASTY allows.
PATIENT = msgspec.structs.replace(HASTY, head_s=PATIENCE_S, body_grace_s=PATIENCE_S, linger_s=PATIENCE_S)


class App:
    """Answers when the body has come: with its size, or with a stream of `stream` bytes."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.came_bytes = 0
        self.stream = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.set()
                return
            size += len(message["body"])
            self.came_bytes += len(message["body"])
            more = message.get("more_body")
        if self.stream:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(self.stream // 10_000):
                await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
            await send({"type": "http.response.body", "body": b"end"})
            self.left.set()
            return
        text = str(size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})


Connect = Callable[[], socket.socket]


@pytest.fixture
def app() -> App:
    return App()


@contextmanager
def serving(app: App, bounds: Bounds = PATIENT, **more: Any) -> Iterator[tuple[Connect, uvicorn.Server]]:
    listener = socket.create_server(("127.0.0.1", 0))
    tune(listener)
    http = bounded_http(bounds, Leaving())
    config = uvicorn.Config(app, http=http, loop="uvloop", ws="none", lifespan="off", log_level="warning", **more)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield lambda: socket.create_connection(listener.getsockname(), timeout=PATIENCE_S), server
    server.should_exit = True
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture
def connect(app: App) -> Iterator[Connect]:
    with serving(app, HASTY) as (connecting, _):
        yield connecting


@pytest.fixture
def connect_patiently(app: App) -> Iterator[Connect]:
    with serving(app) as (connecting, _):
        yield connecting


def head(*fields: str, line: str = "POST / HTTP/1.1") -> bytes:
    return "\r\n".join([line, "host: localhost", *fields, "", ""]).encode()


def all_of(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def refusal(answer: bytes) -> tuple[int, str]:
    """The status and the message of the only answer, which closes."""
    first, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in first
    return int(first.split()[1]), json.loads(body)["error"]["message"]


@pytest.mark.parametrize("part", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: localhost\r\n"])
def test_a_head_that_does_not_come_ends_the_connection(connect: Connect, part: bytes) -> None:
    with connect() as client:
        client.sendall(part)
        answer = all_of(client)
    assert refusal(answer) == (408, "The request's head did not come within 0.4 s.") if part else answer == b""


def test_the_second_head_has_its_deadline_too(connect: Connect) -> None:
    with connect() as client:
        client.sendall(head("content-length: 1") + b"a")
        assert client.recv(1000).endswith(b"1")
        client.sendall(b"POST / HTTP/1.1\r\nho")
        assert refusal(all_of(client))[0] == 408


def test_line_breaks_keep_no_idle_connection_open(app: App) -> None:
    with serving(app, timeout_keep_alive=1) as (connect, _), connect() as client:
        assert b"200 OK" in answered(client)
        client.sendall(b"\r\n")
        assert all_of(client) == b""


@pytest.mark.parametrize("drip", [b"", b"a"])
def test_a_body_without_pace_gets_408_and_its_request_ends(connect: Connect, app: App, drip: bytes) -> None:
    with connect() as client:
        client.sendall(head("content-length: 1000000") + drip)
        status, message = refusal(all_of(client))
    assert (status, message) == (
        408,
        "The request body comes too slowly: after 0.3 s at least 1000 bytes per second are expected.",
    )
    assert app.left.wait(PATIENCE_S)


def test_a_slow_body_with_a_pace_may_take_its_time(app: App) -> None:
    # It takes a third longer than the grace. The one look at its pace finds several pieces where one would do.
    bounds = msgspec.structs.replace(HASTY, body_grace_s=3.0, body_rate_bytes=100)
    with serving(app, bounds) as (connect, _), connect() as client:
        client.sendall(head("content-length: 4000"))
        for _ in range(8):
            time.sleep(bounds.body_grace_s / 6)
            client.sendall(b"a" * 500)
        assert client.recv(1000).endswith(b"4000")


def test_bodies_share_one_budget_which_comes_back(connect_patiently: Connect, app: App) -> None:
    connect, half = connect_patiently, b"a" * 120_000
    with connect() as first:
        first.sendall(head("content-length: 130000") + half)
        eventually(lambda: app.came_bytes >= len(half), "the first half")  # else the second client's may come first
        with connect() as second:
            second.sendall(head("content-length: 120001") + half)
            answer = second.recv(4096)
        assert b" 429 " in answer
        assert b"retry-after: 1" in answer
        first.sendall(b"a" * 10_000)
        assert first.recv(1000).endswith(b"130000")
        with connect() as third:
            third.sendall(head("content-length: 120000") + half)
            assert third.recv(1000).endswith(b"120000")


def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection(connect_patiently: Connect, app: App) -> None:
    app.stream = 20_000
    with connect_patiently() as client:
        client.sendall(head(line="GET / HTTP/1.0"))
        first, _, body = all_of(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in first
    assert body == b"x" * 20_000 + b"end"


def test_a_body_over_the_budget_that_arrives_at_once_gets_one_response(app: App) -> None:
    body = b"a" * 90_000
    with serving(app, msgspec.structs.replace(PATIENT, bodies_bytes=20_000)) as (connect, _):
        for _ in range(20):
            with connect() as client:
                client.sendall(head("content-length: 90000") + body)
                answer = all_of(client)
            assert (answer.count(b"HTTP/1.1 "), b" 429 " in answer) == (1, True)


def test_bodies_of_one_credential_leave_room_for_those_of_others(connect_patiently: Connect, app: App) -> None:
    part = b"a" * 90_000
    with connect_patiently() as first:
        first.sendall(head("content-length: 90001", "authorization: Bearer one") + part)
        eventually(lambda: app.came_bytes >= len(part), "the first body")
        with connect_patiently() as second:
            second.sendall(head("content-length: 90000", "authorization: bearer  one") + part)
            assert b" 429 " in second.recv(4096)
        with connect_patiently() as third:
            third.sendall(head("content-length: 90000", "authorization: Bearer two") + part)
            assert third.recv(4096).endswith(b"90000")
        first.sendall(b"a")
        assert first.recv(4096).endswith(b"90001")
    with connect_patiently() as later:
        later.sendall(head("content-length: 90000", "authorization: Bearer one") + part)
        assert later.recv(4096).endswith(b"90000")


@pytest.mark.parametrize(("version", "interim"), [("1.1", 1), ("1.0", 0)])
def test_only_http_1_1_gets_an_interim_response(connect_patiently: Connect, version: str, interim: int) -> None:
    fields = ("content-length: 2", "expect: 100-continue", "connection: close")
    with connect_patiently() as client:
        client.sendall(head(*fields, line=f"POST / HTTP/{version}") + b"ab")
        answer = all_of(client)
    assert answer.count(b" 100 Continue") == interim
    assert answer.endswith(b"\r\n\r\n2")


def test_an_upgrade_is_ignored_and_its_body_is_read(connect_patiently: Connect) -> None:
    fields = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQ")
    with connect_patiently() as client:
        client.sendall(head(*fields, "content-length: 5") + b"ab")
        time.sleep(0.05)
        client.sendall(b"cde" + head("content-length: 2") + b"ab")
        received = b""
        while received.count(b"HTTP/1.1 200") < 2 or not received.endswith(b"2"):
            part = client.recv(1000)
            assert part
            received += part
    assert b"\r\n\r\n5HTTP/1.1" in received


def test_a_client_that_does_not_read_is_cut_off(connect: Connect, app: App) -> None:
    app.stream = 20_000_000
    with connect() as client:
        client.sendall(head(line="GET / HTTP/1.0"))
        assert not app.left.wait(2 * HASTY.flush_s)  # it pushes back: what was written is bounded
        client.shutdown(socket.SHUT_WR)  # the server hangs up, what it wrote is not taken
        error = eventually(lambda: client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "an error of the socket")
    assert error == errno.ECONNRESET


def test_too_many_pipelined_requests_get_what_was_asked_first_then_a_refusal(connect_patiently: Connect) -> None:
    with connect_patiently() as client:
        client.sendall(head(line="GET / HTTP/1.1") * 200)
        answer = all_of(client)
    assert answer.count(b"HTTP/1.1 200") == PATIENT.pipelined + 1
    assert answer.count(b"HTTP/1.1 400") == 1
    assert answer.rindex(b"HTTP/1.1 400") > answer.rindex(b"HTTP/1.1 200")


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_takes_its_requests_along(app: App, reset: bool) -> None:
    with serving(app) as (connect, server):
        with connect() as client:
            client.sendall(head("content-length: 5") + b"ab")
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert app.left.wait(PATIENCE_S)
        state = server.server_state
        eventually(lambda: not (state.connections or state.tasks), "no connection and no task")


@contextmanager
def busy(connect: Connect, count: int) -> Iterator[list[socket.socket]]:
    """Connections with a request each whose body is not whole."""
    clients = [connect() for _ in range(count)]
    for client in clients:
        client.sendall(head("content-length: 5") + b"1")
        client.sendall(b"23")
    yield clients
    for client in clients:
        client.close()


def test_beyond_the_limit_of_busy_connections_requests_get_429(app: App) -> None:
    with serving(app, limit_concurrency=3) as (connect, server), busy(connect, 2), connect() as third:
        eventually(lambda: len(server.server_state.tasks) == 2)
        third.sendall(head(line="GET / HTTP/1.1"))
        answer = all_of(third)
    assert refusal(answer) == (429, "The gateway has too many open connections.")
    assert b"retry-after: 1\r\n" in answer


def test_beyond_the_limit_of_connections_health_is_told_and_the_connection_ends(app: App) -> None:
    """A process with many clients is not one that must be started anew."""
    with serving(app, limit_concurrency=3) as (connect, server), busy(connect, 2), connect() as third:
        eventually(lambda: len(server.server_state.tasks) == 2)
        third.sendall(head(line="GET /health/live?full=1 HTTP/1.1"))
        answer = all_of(third)
        for line in ("GET /health/lively HTTP/1.1", "GET /health/live/x HTTP/1.1", "GET /?/health/live HTTP/1.1"):
            with connect() as other:
                other.sendall(head(line=line))
                assert refusal(all_of(other))[0] == 429
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close\r\n" in answer


def answered(client: socket.socket) -> bytes:
    """The answer to a request on `client`, which stays open."""
    client.sendall(head(line="GET / HTTP/1.1"))
    answer = b""
    while not answer.endswith(b"\r\n\r\n0"):  # the size of the body, which is empty
        part = client.recv(65536)
        assert part
        answer += part
    return answer


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed a connection on which no answer is due."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        client.settimeout(PATIENCE_S)


def test_idle_connections_make_room_for_others_the_idlest_first(app: App) -> None:
    with serving(app, limit_concurrency=5) as (connect, server), ExitStack() as stack:
        first, second, third, fourth = (stack.enter_context(connect()) for _ in range(4))
        eventually(lambda: len(server.server_state.connections) == 4)
        assert b"200 OK" in answered(first)  # the second is the idlest now, before the first byte
        third.sendall(b"GET / HT")  # a head that is not whole makes nothing younger
        assert b"200 OK" in answered(stack.enter_context(connect()))
        eventually(lambda: is_closed(second))
        assert b"200 OK" in answered(stack.enter_context(connect()))
        eventually(lambda: is_closed(third))
        assert not any(is_closed(client) for client in (first, fourth))
        assert b"200 OK" in answered(first)


def test_busy_connections_are_not_closed_for_others(app: App) -> None:
    with serving(app, limit_concurrency=5) as (connect, server), busy(connect, 3) as waiting, ExitStack() as stack:
        eventually(lambda: len(server.server_state.tasks) == 3)
        for _ in range(20):
            assert b"200 OK" in answered(stack.enter_context(connect()))
        assert len(server.server_state.connections) < 6
        for client in waiting:
            client.sendall(b"45")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_an_idle_client_gets_all_of_its_answer_where_another_can_make_room(app: App) -> None:
    app.stream = 8_000_000
    bounds = msgspec.structs.replace(PATIENT, unsent_bytes=64 * 1024 * 1024)  # the answer is written, and waits
    with serving(app, bounds, limit_concurrency=3, timeout_keep_alive=60) as (connect, _), connect() as slow:
        slow.sendall(head(line="GET / HTTP/1.1"))
        assert app.left.wait(PATIENCE_S)
        app.stream = 0
        with connect() as younger, connect() as other:
            assert b"200 OK" in answered(other)
            eventually(lambda: is_closed(younger))
        size = 0
        while size < 8_000_000:
            data = slow.recv(65536)
            assert data
            size += len(data)


def test_an_idle_client_that_has_not_read_its_answer_makes_room_too(app: App) -> None:
    app.stream = 4_000_000
    bounds = msgspec.structs.replace(PATIENT, unsent_bytes=64 * 1024 * 1024)  # the answer is written, and waits
    with serving(app, bounds, limit_concurrency=2) as (connect, server), connect() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(head(line="GET / HTTP/1.1"))
        assert app.left.wait(PATIENCE_S)
        app.stream = 0
        with connect() as other:
            assert b"200 OK" in answered(other)
            assert len(server.server_state.connections) == 1


BAD_HOSTS = (
    "localhost:80@evil",
    "evil@localhost",
    "localhost/evil",
    "localhost:80:80",
    "local host",
    "localhost#x",
    "[::1",
    "::1",
    "[::1]x",
    "[127.0.0.1",
    "[1:2]",
    "localhost:port",
    "localhost:-1",
    "\u00e9",
    "localhost:123456",
    "a%zz",
)
GOOD_HOSTS = (
    "localhost",
    "localhost:80",
    "localhost:",
    "",
    "127.0.0.1:80",
    "[::1]:80",
    "[::ffff:127.0.0.1]",
    "a_b.c-d",
    "%61",
)


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_host_that_is_none_is_refused(connect_patiently: Connect, host: str) -> None:
    """RFC 9112, 3.2; RFC 3986, 3.2.2."""
    client = connect_patiently()
    client.sendall(f"GET / HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
    assert refusal(all_of(client)) == (400, "Invalid header 'host': expected a host with or without a port.")


@pytest.mark.parametrize("host", GOOD_HOSTS)
def test_a_host_in_any_of_its_forms_is_served(connect_patiently: Connect, host: str) -> None:
    client = connect_patiently()
    client.sendall(f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    assert all_of(client).startswith(b"HTTP/1.1 200 ")
