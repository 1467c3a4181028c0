"""An address in front of a server: for servers that come one after the other, for a slow one, for one behind TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Self

from tests.support.threaded_server import ConnectionServer

_READ_BYTES = 65_536


class Relay(ConnectionServer):
    """Passes connections on to the server on `to_port` of the loopback.

    `delay_s` is the delay of the server's bytes; it may be changed at any time. With `tls`, clients speak TLS; `peers`
    are the serial numbers of their certificates, "" for a client without one.
    """

    def __init__(self, to_port: int, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.delay_s = 0.0
        self.peers: list[str] = []
        self._to_port = to_port
        super().__init__(host=host, tls=tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def lead_to(self, port: int) -> None:
        """Break the connections to the server so far, as its end does, and pass later ones on to `port`."""
        self._to_port = port
        self._loop.call_soon_threadsafe(self._break)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._tls is not None:
            self.peers.append(str((writer.get_extra_info("peercert") or {}).get("serialNumber", "")))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        back = asyncio.create_task(self._copy(far_reader, writer, is_late=True))
        try:
            await self._copy(reader, far_writer, is_late=False)
        finally:
            back.cancel()
            far_writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_late: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if is_late:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()
