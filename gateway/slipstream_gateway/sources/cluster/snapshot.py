"""The configuration of a gateway, kept on a small volume for a start without the cluster.

A kill or a rollback is written at once, so that the next start knows every confirmed one.

It is one JSON file, replaced as a whole: several workers may write it, and a reader finds the version of one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.file_changes import replace_file
from slipstream_core.file_reading import FileThread, read_regular

FORMAT = 1
MAX_BYTES = 64 * 1024 * 1024
_FLUSH_TIMEOUT_S = 3.0
_log = logging.getLogger(__name__)


class KeptObject(msgspec.Struct, frozen=True, kw_only=True):
    """A pair or a policy in its last valid version, and whether the newest has its kill switch on."""

    item: dict[str, Any]
    killed: bool = False


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`endpoints` are the ready servers by Service, `written_s` the time of writing in seconds since 1970."""

    format: int
    written_s: float
    objects: tuple[KeptObject, ...] = ()
    endpoints: Mapping[str, tuple[str, ...]] = {}


def read_snapshot(path: Path) -> ClusterSnapshot | None:
    """The snapshot at `path`; None where it is missing or cannot be used, for a reason that is logged."""
    try:
        data = FileThread().run(lambda: read_regular(path, max_bytes=MAX_BYTES))
        found = msgspec.json.decode(data, type=ClusterSnapshot)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as exc:
        _log.warning("the snapshot %s cannot be used: %s", path, exc)
        return None
    if found.format != FORMAT or not all(_is_object(kept.item) for kept in found.objects):
        _log.warning("the snapshot %s cannot be used: it was not written by this version", path)
        return None
    return found


class SnapshotWriter:
    """Writes the result of `take` until its task is cancelled: after `pause_s`, or at once on request. There is one
    write at a time: a volume that hangs blocks this task alone."""

    def __init__(self, path: Path, take: Callable[[], ClusterSnapshot], *, pause_s: float = 1.0) -> None:
        self._path = path
        self._take = take
        self._pause_s = pause_s
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._progress = asyncio.Event()
        self._asked = self._done = 0
        self._files = FileThread()
        self._problem = ""

    def changed(self, *, at_once: bool = False) -> int:
        """Request a write. Returns the number to wait for with `settled`."""
        self._asked += 1
        self._changed.set()
        if at_once:
            self._hurry.set()
        return self._asked

    async def settled(self, asked: int, *, limit_s: float) -> None:
        """Wait until the requested write succeeded or failed, at most `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._done < asked:
                    await self._progress.wait()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._hurry.wait()
            await self._write()

    async def flush(self) -> None:
        """Write what is pending, after the task has ended, unless the volume hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                if self._changed.is_set():
                    await self._write()

    async def _write(self) -> None:
        self._changed.clear()
        self._hurry.clear()
        asked, snapshot = self._asked, self._take()
        try:
            await self._files.arun(lambda: replace_file(self._path, msgspec.json.encode(snapshot)))
        except asyncio.CancelledError:
            self._changed.set()  # it may or may not have been written
            raise
        except OSError as exc:
            if str(exc) != self._problem:
                _log.warning("the snapshot %s cannot be written: %s", self._path, exc)
            self._problem = str(exc)
        else:
            self._problem = ""
        self._done = asked
        self._progress.set()
        self._progress = asyncio.Event()


def new_snapshot(objects: tuple[KeptObject, ...], endpoints: Mapping[str, tuple[str, ...]]) -> ClusterSnapshot:
    """A snapshot as of now."""
    return ClusterSnapshot(format=FORMAT, written_s=time.time(), objects=objects, endpoints=endpoints)


def _is_object(item: Mapping[str, Any]) -> bool:
    """Whether an object has enough fields to be identified."""
    metadata = item.get("metadata")
    return (
        isinstance(item.get("kind"), str)
        and isinstance(metadata, dict)
        and isinstance(metadata.get("name"), str)
        and isinstance(metadata.get("namespace"), str)
        and isinstance(metadata.get("generation", 0), int)
    )
