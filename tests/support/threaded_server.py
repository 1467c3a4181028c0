"""A server of a test, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod

from tests.support.polling import PATIENCE_S


class ThreadedServer(ABC):
    """Runs from its construction to `stop`. Subclasses set their own fields first: the thread uses them."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(PATIENCE_S)

    @abstractmethod
    async def _serve(self) -> None:
        """Listens on `port` (0: any, which is set then), sets `_ready`, serves until `_stopping`, and cleans up."""

    def _run(self) -> None:
        self._loop.run_until_complete(self._until_stopped())
        self._loop.close()

    async def _until_stopped(self) -> None:
        self._stopping = asyncio.Event()
        await self._serve()
