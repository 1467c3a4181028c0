"""A proxy that delays and cuts what goes through it."""

from __future__ import annotations

import asyncio
import contextlib
import random


class SlowProxy:
    """Between a client and the server on `to_port`. Replies come `delay_s` late. With the probability `cut` the
    connection ends at a random byte of a reply: the server has carried out the command, and the client does not know.
    Nothing passes while `open` is clear."""

    def __init__(self, to_port: int, *, delay_s: float = 0.0, cut: float = 0.0, seed: int = 0) -> None:
        self._to_port = to_port
        self.delay_s = delay_s
        self.cut = cut
        self.cuts = 0
        self.open = asyncio.Event()
        self.open.set()
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        back = asyncio.create_task(self._back(to_reader, writer))
        try:
            while data := await reader.read(65536):
                await self.open.wait()
                to_writer.write(data)
                await to_writer.drain()
        except ConnectionError:
            pass  # either side may go at any time
        finally:
            back.cancel()
            to_writer.close()
            writer.close()
            self._tasks.discard(task)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await asyncio.sleep(self.delay_s)
                await self.open.wait()
                if self._random.random() < self.cut:
                    self.cuts += 1
                    writer.write(data[: self._random.randrange(len(data))])
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
