"""A network that breaks on cue, between the gateway and its servers: addresses that lead to one server."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import NamedTuple

from tests.support.network import Network

_READ_BYTES = 4096
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends RST


class Cut(NamedTuple):
    """After `after_bytes` more from any server: `reset` breaks the connection, `stall` lets nothing
    through it until the next plan."""

    after_bytes: int
    kind: str = "reset"


class BreakingNetwork(Network):
    """`ports` lead to the server on `to_port`, over connections that break as planned, one cut after the other. `made`
    counts the cuts."""

    def __init__(self, to_port: int, addresses: int) -> None:
        self.made = 0
        self._planned: deque[Cut] = deque()
        self._stalls = asyncio.Event()
        super().__init__(to_port, addresses=addresses)

    def plan(self, *cuts: Cut) -> None:
        """What is to happen from now on; what was planned before is forgotten, and connections that stall break."""
        self._loop.call_soon_threadsafe(self._end_stalls)
        self._planned, self.made = deque(cuts), 0

    def _end_stalls(self) -> None:
        self._stalls.set()
        self._stalls = asyncio.Event()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_READ_BYTES):
            if not self._planned or len(data) < self._planned[0].after_bytes:
                if self._planned:
                    left = self._planned[0].after_bytes - len(data)
                    self._planned[0] = self._planned[0]._replace(after_bytes=left)
                writer.write(data)
                await writer.drain()
                continue
            cut = self._planned.popleft()
            self.made += 1
            writer.write(data[: cut.after_bytes])
            await writer.drain()
            if cut.kind == "stall":
                await self._stalls.wait()
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            return
