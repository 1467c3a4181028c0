"""An address in front of a server, over a network that is slow, halts, or cuts replies."""

from __future__ import annotations

import asyncio
import random
import ssl

from tests.support.threaded_server import ConnectionServer

_READ_BYTES = 65_536  # a reply of Redis is one piece: the chance of a cut is that of a reply


class Network(ConnectionServer):
    """Passes connections on to the server on `to_port` of the loopback.

    The server's bytes come `delay_s` late. With the probability `cut_share` a connection ends at a random byte of a
    reply, and `cuts` counts them: the server has carried out the command, and the client does not know. With `tls`,
    clients speak TLS; `peers` are the serial numbers of their certificates, "" for a client without one. `knocks`
    counts connections.
    """

    def __init__(
        self,
        to_port: int,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        delay_s: float = 0.0,
        cut_share: float = 0.0,
        seed: int = 0,
        addresses: int = 1,
    ) -> None:
        self.delay_s, self.cut_share, self.cuts = delay_s, cut_share, 0
        self.knocks = 0
        self.peers: list[str] = []
        self._to_port = to_port
        self._random = random.Random(seed)
        self._released = asyncio.Event()
        self._is_held = False
        super().__init__(host=host, tls=tls, addresses=addresses)

    def hold(self) -> None:
        """Let nothing through until `release`."""
        self._released, self._is_held = asyncio.Event(), True

    def release(self) -> None:
        self._is_held = False
        self._loop.call_soon_threadsafe(self._released.set)

    def lead_to(self, port: int) -> None:
        """Break the connections to the server so far, as its end does, and pass later ones on to `port`."""
        self._to_port = port
        self._loop.call_soon_threadsafe(self._break)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.knocks += 1
        if self._tls is not None:
            self.peers.append(str((writer.get_extra_info("peercert") or {}).get("serialNumber", "")))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        both = [
            asyncio.create_task(self._forth(reader, far_writer)),
            asyncio.create_task(self._back(far_reader, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            far_writer.close()

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_READ_BYTES):
            await self._passes()
            writer.write(data)
            await writer.drain()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_READ_BYTES):
            await asyncio.sleep(self.delay_s)
            await self._passes()
            if self._random.random() < self.cut_share:
                self.cuts += 1
                writer.write(data[: self._random.randrange(len(data))])
                return
            writer.write(data)
            await writer.drain()

    async def _passes(self) -> None:
        while self._is_held:
            await self._released.wait()
