"""Bodies that arrive slowly hold places of their key, and of no other."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
from slipstream_core.settings import Limits

from tests.support.polling import PATIENCE_S, eventually

BODY = json.dumps({"model": "acme", "messages": [{"role": "user", "content": "tokens=1"}]}).encode()


def begin(url: str, key: str) -> socket.socket:
    """A connection on which a request of the key has begun, without the end of its body."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
    connection.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n".encode())
    return connection


def status(url: str, key: str, path: str = "chat/completions") -> tuple[int, str]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    answer = httpx.post(f"{url}/v1/{path}", content=BODY, headers=headers, timeout=PATIENCE_S)
    return answer.status_code, answer.text


def test_a_key_holds_so_many_arriving_bodies_and_no_place_of_others(served: Callable[..., Any], keys: Any) -> None:
    slow, other = keys.create(), keys.create()
    running = served(limits=Limits(max_in_flight=2))
    connections = [begin(running.url, slow) for _ in range(2)]
    try:
        for path in ("chat/completions", "route"):
            eventually(lambda path=path: status(running.url, slow, path)[0] == 429, "the key's places are taken")
            assert "This key sends 2 request bodies at once already" in status(running.url, slow, path)[1]
            assert status(running.url, other, path)[0] == 200
        connections[0].sendall(BODY)
        assert connections[0].recv(12) == b"HTTP/1.1 200"
        eventually(lambda: status(running.url, slow)[0] == 200, "a place is free")
    finally:
        for connection in connections:
            connection.close()
