"""One address for servers that come one after the other."""

from __future__ import annotations

import asyncio
import contextlib

from tests.support.threaded_server import ThreadedServer

_READ_BYTES = 65_536


class Relay(ThreadedServer):
    """Passes connections on to the server on `to_port` of the loopback."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._connections: set[asyncio.Task[None]] = set()
        super().__init__()

    def lead_to(self, port: int) -> None:
        """Break the connections to the server so far, as its end does, and pass later ones on to `port`."""
        self._to_port = port
        self._loop.call_soon_threadsafe(self._break)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._client, "127.0.0.1", self.port)
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
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
            back = asyncio.create_task(_copy(far_reader, writer))
            try:
                await _copy(reader, far_writer)
            finally:
                back.cancel()
                far_writer.close()
        self._connections.discard(task)
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
