"""An address in front of a server: for servers that come one after the other, for a distant one, for one behind TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Self

from tests.support.threaded_server import ThreadedServer

_READ_BYTES = 65_536


class Relay(ThreadedServer):
    """Passes connections on to the server on `to_port` of the loopback.

    The server's bytes come `delay_s` late, which may change at any time. With `tls`, clients speak TLS; `peers` are the
    serial numbers of their certificates, "" for a client without one.
    """

    def __init__(
        self, to_port: int, *, delay_s: float = 0.0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.delay_s = delay_s
        self.peers: list[str] = []
        self._to_port, self._host, self._tls = to_port, host, tls
        self._connections: set[asyncio.Task[None]] = set()
        super().__init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def lead_to(self, port: int) -> None:
        """Break the connections to the server so far, as its end does, and pass later ones on to `port`."""
        self._to_port = port
        self._loop.call_soon_threadsafe(self._break)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._client, self._host, self.port, ssl=self._tls, backlog=256)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        self._break()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _break(self) -> None:
        for task in self._connections:
            task.cancel()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        if self._tls is not None:
            self.peers.append(str((writer.get_extra_info("peercert") or {}).get("serialNumber", "")))
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
            back = asyncio.create_task(self._copy(far_reader, writer, is_late=True))
            try:
                await self._copy(reader, far_writer, is_late=False)
            finally:
                back.cancel()
                far_writer.close()
        self._connections.discard(task)
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_late: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if is_late:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()
