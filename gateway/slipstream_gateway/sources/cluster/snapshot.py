"""What a gateway goes by, kept on a small volume for a start without the cluster.

What takes speculation back is written at once, so that nobody is told of a kill that the next start does not know.

One JSON file, replaced in whole: several workers may write it, and whoever reads it finds one of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.file_thread import FileThread
from slipstream_core.regular_files import read_regular

FORMAT = 1
MAX_BYTES = 64 * 1024 * 1024
_FLUSH_TIMEOUT_S = 3.0
_log = logging.getLogger(__name__)


class KeptObject(msgspec.Struct, frozen=True, kw_only=True):
    """A pair or a policy in its last usable version, and whether its kill switch was on in the newest."""

    item: dict[str, Any]
    killed: bool = False


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`endpoints` are the ready servers by Service, `written_s` the time of writing in seconds since 1970."""

    format: int
    written_s: float
    objects: tuple[KeptObject, ...] = ()
    endpoints: Mapping[str, tuple[str, ...]] = {}


def read_snapshot(path: Path) -> ClusterSnapshot | None:
    """The snapshot at `path`; None where there is none that can be used. Says why in the log."""
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
    """Writes what `take` gives, until its task is cancelled: after `pause_s`, or at once where that is asked for. One
    write at a time: a volume that hangs holds up nobody but this task."""

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
        """There is something new to write; what to wait for with `settled`."""
        self._asked += 1
        self._changed.set()
        if at_once:
            self._hurry.set()
        return self._asked

    async def settled(self, asked: int, *, limit_s: float) -> None:
        """Waits until what was asked for was written, or has failed to be; not longer than `limit_s`."""
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
        """Writes at once what was not written yet, where the volume can keep up. For when the task has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                if self._changed.is_set():
                    await self._write()

    async def _write(self) -> None:
        self._changed.clear()
        self._hurry.clear()
        asked = self._asked
        try:
            await self._files.arun(partial(_replace, self._path, self._take()))
        except asyncio.CancelledError:
            self._changed.set()  # nobody knows whether it was written
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


def _replace(path: Path, snapshot: ClusterSnapshot) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(snapshot))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def new_snapshot(objects: tuple[KeptObject, ...], endpoints: Mapping[str, tuple[str, ...]]) -> ClusterSnapshot:
    """A snapshot as of now."""
    return ClusterSnapshot(format=FORMAT, written_s=time.time(), objects=objects, endpoints=endpoints)


def _is_object(item: Mapping[str, Any]) -> bool:
    """Whether there is enough of an object to know it by."""
    metadata = item.get("metadata")
    return (
        isinstance(item.get("kind"), str)
        and isinstance(metadata, dict)
        and isinstance(metadata.get("name"), str)
        and isinstance(metadata.get("namespace"), str)
        and isinstance(metadata.get("generation", 0), int)
    )
