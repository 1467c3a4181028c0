"""Servers of tests, each in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

from aiohttp import web

from tests.support.polling import PATIENCE_S


class ThreadedServer(ABC):
    """Runs from its construction to `stop`. Subclasses set their own fields first: the thread uses them.

    A server that another one replaces on its port takes one of `lasting_ports`. Outgoing connections may get any other
    port meanwhile.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._failure: OSError | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(PATIENCE_S)

    @abstractmethod
    async def _serve(self) -> None:
        """Listens on `port` (0: any, which is set then), sets `_ready`, serves until `_stopping`, and cleans up."""

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._until_stopped())
        except OSError as exc:
            self._failure = exc
            self._ready.set()
        self._loop.close()

    async def _until_stopped(self) -> None:
        self._stopping = asyncio.Event()
        await self._serve()


class ConnectionServer(ThreadedServer):
    """Gives each connection to `_client`; the connections end with the server. `addresses` is the number of its
    `ports`."""

    def __init__(
        self, port: int = 0, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, addresses: int = 1
    ) -> None:
        self._host, self._tls, self._addresses = host, tls, addresses
        self.ports: list[int] = []
        self._connections: set[asyncio.Task[None]] = set()
        super().__init__(port)

    @abstractmethod
    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end. `OSError`, a cancellation and an early end of the input end it as well."""

    async def _serve(self) -> None:
        servers = [
            await asyncio.start_server(self._tracked, self._host, port, ssl=self._tls, backlog=256)
            for port in (self.port, *[0] * (self._addresses - 1))
        ]
        self.ports = [server.sockets[0].getsockname()[1] for server in servers]
        self.port = self.ports[0]
        self._ready.set()
        await self._stopping.wait()
        for server in servers:
            server.close()
        self._break()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _break(self) -> None:
        for task in self._connections:
            task.cancel()

    async def _tracked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._client(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()


class WebServer(ThreadedServer):
    """Serves `routes` by HTTP; a request is cancelled when its client leaves."""

    @abstractmethod
    def routes(self) -> Sequence[web.RouteDef]: ...

    async def _serve(self) -> None:
        app = web.Application()
        app.add_routes(self.routes())
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stopping.wait()
        await runner.cleanup()
