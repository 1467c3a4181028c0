"""Certificates of authorities that live as long as a test, a TLS terminator before a plain server, and a collector of
spans."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import trustme

from tests.support.threaded_server import ThreadedServer


class TlsFront(ThreadedServer):
    """Takes TLS on a port of its own and hands the bytes to a plain server on this machine."""

    def __init__(self, to_port: int, context: ssl.SSLContext) -> None:
        self.peers: list[str] = []
        self._to_port = to_port
        self._context = context
        super().__init__()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = writer.get_extra_info("peercert") or {}
        self.peers.append(str(shown.get("serialNumber", "")))
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(_pipe(reader, to_writer), _pipe(to_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


class Certificates:
    """PEM files of one authority in a folder."""

    def __init__(self, folder: Path, authority: trustme.CA | None = None) -> None:
        self.authority = authority or trustme.CA()
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.ca = folder / "ca.pem"
        self.certificate = folder / "tls.crt"
        self.key = folder / "tls.key"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.renew()

    def renew(self, issued: trustme.LeafCert | None = None) -> trustme.LeafCert:
        """A new certificate in the same files."""
        found = issued or self.authority.issue_cert("127.0.0.1", "localhost")
        self.certificate.write_bytes(b"".join(part.bytes() for part in found.cert_chain_pems))
        found.private_key_pem.write_to_path(str(self.key))
        return found

    def server(self, *, clients: Path | None = None) -> ssl.SSLContext:
        """A server's side; it asks for certificates of the authority in `clients`, where that is given."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
        context.load_cert_chain(self.certificate, self.key)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Callable[[str], Certificates]:
    return lambda name: Certificates(tmp_path / name)


@pytest.fixture
def tls_front() -> Iterator[Callable[[int, ssl.SSLContext], TlsFront]]:
    """Starts terminators; all are stopped after the test."""
    fronts: list[TlsFront] = []

    def start(to_port: int, context: ssl.SSLContext) -> TlsFront:
        fronts.append(TlsFront(to_port, context))
        return fronts[-1]

    yield start
    for front in fronts:
        front.stop()


class _Spans(http.server.BaseHTTPRequestHandler):
    """An OTLP receiver that keeps what it gets; strings are plain bytes in protobuf."""

    got: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.got.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    _Spans.got.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Spans)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", _Spans.got
    server.shutdown()
    server.server_close()
