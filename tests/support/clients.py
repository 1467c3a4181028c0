"""Clients that send requests all the time, each in a thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Self


class Clients(ABC):
    """Runs for as long as the context lasts; a client's failure is the context's."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._run, number) for number in range(self._count)]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._pool.shutdown()
        if exc_info[0] is None:
            for running in self._running:
                running.result()

    @abstractmethod
    def _run(self, number: int) -> None:
        """The client with this number, until `_over`."""
