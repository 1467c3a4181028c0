"""How long a client may take for its head."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from slipstream_gateway.bounded_http import BoundedHttp

WAIT_S = 20.0


class HastyHttp(BoundedHttp):
    head_timeout_s = 0.5


async def slow_app(scope: Any, receive: Any, send: Any) -> None:
    """Answers when the body has come."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """A connection to a server that waits half a second for a head."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(slow_app, http=HastyHttp, ws="none", lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    with socket.create_connection(listener.getsockname(), timeout=WAIT_S) as client:
        yield client
    server.should_exit = True
    thread.join(WAIT_S)


@pytest.mark.parametrize("part", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_connection_whose_head_does_not_come_is_closed(connection: socket.socket, part: bytes) -> None:
    connection.sendall(part)
    assert connection.recv(100) == b""


def test_second_head_has_its_deadline_too_and_a_body_has_not(connection: socket.socket) -> None:
    connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na")
    time.sleep(2 * HastyHttp.head_timeout_s)  # longer than a head may take
    connection.sendall(b"b")
    assert b"ok" in connection.recv(1000)
    connection.sendall(b"POST / HTTP/1.1\r\nho")
    assert connection.recv(100) == b""
