"""How `/metrics` of any worker shows all of them: each worker serves its own on a Unix socket in a shared folder.

A worker that has died stays out of the sums, so counters fall by its share when it is replaced; Prometheus' `rate`
takes that for a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from slipstream_gateway.telemetry.exposition import merge

ANSWER_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)


class Siblings:
    """This worker's socket, and the way to the others'. Use as an asynchronous context."""

    def __init__(self, folder: Path | None, exposition: Callable[[], bytes]) -> None:
        self._folder = folder
        self._exposition = exposition
        self._path = folder / f"{os.getpid()}.sock" if folder is not None else None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Siblings:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None and self._path is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def collect(self) -> bytes:
        """The metrics of all workers; of this one where there are no others."""
        if self._folder is None:
            return self._exposition()
        sockets = await asyncio.to_thread(lambda folder: sorted(folder.glob("*.sock")), self._folder)
        others = [path for path in sockets if path != self._path]
        texts = await asyncio.gather(*(self._ask(path) for path in others))
        return merge([self._exposition(), *(text for text in texts if text is not None)])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # whoever asked has gone
            writer.write(self._exposition())
            await writer.drain()
        writer.close()

    async def _ask(self, path: Path) -> bytes | None:
        """A sibling's metrics, None where it does not answer."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    return await reader.read(-1)
                finally:
                    writer.close()
        except ConnectionRefusedError:
            _forget(path)  # its worker was killed
        except (OSError, TimeoutError) as exc:
            _log.warning("a worker did not say its metrics: %s", exc)
        return None


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
