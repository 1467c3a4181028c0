"""What a gateway goes by, kept on a small volume for a start without the cluster.

One JSON file, replaced in whole: several workers may write it, and whoever reads it finds one of theirs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

FORMAT = 1
MAX_BYTES = 64 * 1024 * 1024
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
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(MAX_BYTES), type=ClusterSnapshot)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as exc:
        _log.warning("the snapshot %s cannot be used: %s", path, exc)
        return None
    if found.format != FORMAT or not all(_is_object(kept.item) for kept in found.objects):
        _log.warning("the snapshot %s cannot be used: it was not written by this version", path)
        return None
    return found


class SnapshotWriter:
    """Writes what `take` gives, at most once in `pause_s`, until its task is cancelled."""

    def __init__(self, path: Path, take: Callable[[], ClusterSnapshot], *, pause_s: float = 1.0) -> None:
        self._path = path
        self._take = take
        self._pause_s = pause_s
        self._changed = asyncio.Event()
        self._problem = ""

    def changed(self) -> None:
        """There is something new to write."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._pause_s)
            self._changed.clear()
            await self._write()

    async def flush(self) -> None:
        """Writes at once what was not written yet."""
        if self._changed.is_set():
            self._changed.clear()
            await self._write()

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(_replace, self._path, self._take())
        except OSError as exc:
            if str(exc) != self._problem:
                _log.warning("the snapshot %s cannot be written: %s", self._path, exc)
            self._problem = str(exc)
        else:
            self._problem = ""


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
