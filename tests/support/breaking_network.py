"""A network that breaks on cue, between the gateway and its servers: addresses that lead to one server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from typing import NamedTuple

from tests.support.threaded_server import ThreadedServer

_READ_BYTES = 4096
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends RST


class Cut(NamedTuple):
    """After `after_bytes` more from any server: `reset` breaks the connection, `stall` lets nothing
    through it until the next plan."""

    after_bytes: int
    kind: str = "reset"


class BreakingNetwork(ThreadedServer):
    """`ports` lead to one server, over connections that break as `cuts` says, one cut after the other. `made` counts
    the cuts, `cut_s` is when the last was made, by `time.perf_counter`."""

    def __init__(self, host: str, port: int, addresses: int) -> None:
        self.cuts: deque[Cut] = deque()
        self.made = 0
        self.cut_s = 0.0
        self.ports: list[int] = []
        self._server = (host, port)
        self._addresses = addresses
        self._tasks: set[asyncio.Task[None]] = set()
        super().__init__()

    def plan(self, *cuts: Cut) -> None:
        """What is to happen from now on; what was planned before is forgotten, and connections that stall break."""
        self._loop.call_soon_threadsafe(self._end_stalls)
        self.cuts, self.made = deque(cuts), 0

    def _end_stalls(self) -> None:
        self._stalls.set()
        self._stalls = asyncio.Event()

    async def _serve(self) -> None:
        self._stalls = asyncio.Event()
        servers = [await asyncio.start_server(self._connection, "127.0.0.1", 0) for _ in range(self._addresses)]
        self.ports = [server.sockets[0].getsockname()[1] for server in servers]
        self._ready.set()
        await self._stopping.wait()
        for server in servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        up_reader, up_writer = await asyncio.open_connection(*self._server)
        both = [asyncio.create_task(_pipe(reader, up_writer)), asyncio.create_task(self._back(up_reader, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the network's end is the connection's
        finally:
            self._tasks.discard(task)
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.close()
            up_writer.close()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_READ_BYTES):
            if not self.cuts or len(data) < self.cuts[0].after_bytes:
                if self.cuts:
                    self.cuts[0] = self.cuts[0]._replace(after_bytes=self.cuts[0].after_bytes - len(data))
                writer.write(data)
                await writer.drain()
                continue
            cut = self.cuts.popleft()
            self.made += 1
            self.cut_s = time.perf_counter()
            writer.write(data[: cut.after_bytes])
            await writer.drain()
            if cut.kind == "stall":
                await self._stalls.wait()
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            return


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
