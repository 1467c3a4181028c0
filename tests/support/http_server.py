"""An HTTP server in a thread that answers as a function says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple


class Asked(NamedTuple):
    """One request. The names of its headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Reply(NamedTuple):
    """`headers` may name another content-length than the body has: then the answer is cut off."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


@contextlib.contextmanager
def answering(answer: Callable[[Asked], Reply]) -> Iterator[str]:
    """The URL of a server on the loopback that gives each request the `answer` to it, one connection for each."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(Asked(self.command, self.path, headers, body))
            self.send_response(reply.status)
            own = {"content-length": str(len(reply.body)), "connection": "close"}
            for name, value in {**own, **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body if self.command != "HEAD" else b"")

        do_GET = do_HEAD = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
