"""A TCP relay of our own: passes bytes on, late where it is told to, or cuts every connection."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Self

_CHUNK = 65_536
_STOP_S = 5.0


class Relay:
    """Relays `host:port` to a port of the loopback, from a thread of its own. `delay_s` holds back what comes from the
    client, each piece by as much; it may be changed at any time."""

    def __init__(self, target_port: int, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.delay_s = 0.0
        self._target_port = target_port
        self._listener = socket.create_server((host, port), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), name="relay")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_S)

    def cut(self) -> None:
        """Reset every connection that is open."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for writer in self._writers:
            with suppress(OSError):
                linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")  # close by RST
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._listener)
        await self._stopping.wait()
        server.close()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, upstream_writer}
        self._writers |= both
        try:
            await asyncio.gather(
                self._pass_on(reader, upstream_writer, late=True), self._pass_on(upstream_reader, writer, late=False)
            )
        finally:
            self._writers -= both
            for each in both:
                each.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if late and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()  # the other direction ends with it: a half-open connection serves nobody here
