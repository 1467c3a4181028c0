"""A real receiver of OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest


class OtlpReceiver(NamedTuple):
    """Its address, and what it got: path and body."""

    url: str
    got: list[tuple[str, bytes]]


@pytest.fixture
def otlp_receiver() -> Iterator[OtlpReceiver]:
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield OtlpReceiver(f"http://127.0.0.1:{server.server_address[1]}", got)
    server.shutdown()
    server.server_close()
