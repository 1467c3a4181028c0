"""Queries between worker processes, so that any worker can show the figures of all: each has a Unix socket in a shared
folder.

A query is one line; the answer is all data until the socket is closed. A dead worker is missing in the sums, so
counters fall by its share when it is replaced; Prometheus' `rate` treats that as a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from slipstream_gateway.telemetry.exposition import merge

ANSWER_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)

Answer = Callable[[], bytes]
"""The response of a worker to a query. Called on its event loop: must be fast and must not raise."""


class PeerQuery(StrEnum):
    """The queries to a worker: `METRICS` in Prometheus' text format, `OPENMETRICS` with exemplars, `SNAPSHOT` as one
    JSON document for the console."""

    METRICS = "metrics"
    OPENMETRICS = "openmetrics"
    SNAPSHOT = "snapshot"


class WorkerPeers:
    """This worker's socket, and the client for the others'. Use as an asynchronous context."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._answers: dict[PeerQuery, Answer] = {}
        self._path = folder / f"{os.getpid()}.sock" if folder is not None else None
        self._server: asyncio.Server | None = None

    def answer(self, query: PeerQuery, answer: Answer) -> None:
        """Sets the response of this worker to `query`."""
        self._answers[query] = answer

    async def __aenter__(self) -> WorkerPeers:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None and self._path is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def ask(self, query: PeerQuery) -> list[bytes]:
        """The responses of all workers, this one's first. A worker that does not respond in time is left out."""
        answers = [self._answers[query]()] if query in self._answers else []
        if self._folder is None:
            return answers
        sockets = await asyncio.to_thread(lambda folder: sorted(folder.glob("*.sock")), self._folder)
        others = [path for path in sockets if path != self._path]
        found = await asyncio.gather(*(_ask(path, query) for path in others))
        return answers + [text for text in found if text]

    async def metrics(self, *, openmetrics: bool = False) -> bytes:
        """The metrics of all workers as one exposition."""
        texts = await self.ask(PeerQuery.OPENMETRICS if openmetrics else PeerQuery.METRICS)
        return texts[0] if len(texts) == 1 else merge(texts)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, ValueError
        ):  # the peer has disconnected, or its query is unknown
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                query = PeerQuery((await reader.readline()).decode().strip())
                if query in self._answers:
                    writer.write(self._answers[query]())
                    await writer.drain()
        writer.close()


async def _ask(path: Path, query: PeerQuery) -> bytes | None:
    """A peer's response, None without one."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(f"{query}\n".encode())
                return await reader.read(-1)
            finally:
                writer.close()
    except ConnectionRefusedError:
        _forget(path)  # its worker was killed
    except (OSError, TimeoutError) as exc:
        _log.warning("a worker did not respond: %s", exc)
    return None


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
