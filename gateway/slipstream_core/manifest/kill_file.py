"""The kill switches of a manifest file, in a file of their own.

The file lies beside the manifest, which belongs to its owner and is never written by Slipstream. A turn acts in memory
first and is stored second, so that a full disk or a read-only folder never prevents a kill.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from slipstream_core.errors import ManifestError
from slipstream_core.file_changes import FileStamp, replace_file, stamp_of
from slipstream_core.file_reading import FileThread, read_regular
from slipstream_core.manifest.kill_switch import KillEvent, Kills, is_superseded, order_of, with_turns

_MAX_BYTES = 1024 * 1024
_PROBE_BYTES = 4096  # some file systems keep a few bytes within the inode, where a full disk goes unnoticed
_REMEDY = "Repair or remove it. Without it, only the kill switches in the manifest are on."
_NOT_STORABLE = "the kill switch cannot be stored"


def kills_beside(manifest: Path, state_folder: Path | None) -> Path:
    """The path of the kill-switch file of a manifest."""
    return (state_folder or manifest.parent) / f"{manifest.name}.kills.json"


class _Version(NamedTuple):
    """One version of the file; `data` is None where there is no file."""

    stamp: FileStamp | None
    data: bytes | None


class KillFile:
    """The file at `path`; a missing file means no kills. `stored` is the result of the last read. `kills` is in force:
    `stored`, and on top of it each turn that was applied but is not stored yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored = Kills()
        self.kills = Kills()
        self._unstored: dict[str, KillEvent] = {}
        self._stamp: FileStamp | None = None
        self._files, self._changes = FileThread(), FileThread()

    @property
    def unstored(self) -> tuple[KillEvent, ...]:
        """The turns that are in force and not stored, the latest one of each pair."""
        return tuple(self._unstored.values())

    def apply(self, event: KillEvent) -> None:
        """Puts `event` in force in memory, unless a later turn of its pair is. An equal turn replaces its note."""
        known = self._unstored.get(event.pair)
        if known is None or order_of(known) <= order_of(event):
            self._unstored[event.pair] = event
            self._merge()

    def refresh(self) -> bool:
        """Reads the file if it has changed, and returns whether it had.

        Raises `ManifestError` once per bad file, and on every failed read; the previous kills stay in force.
        """
        with self._in_time():
            version = self._files.run(self._read)
        return self._take(version)

    async def arefresh(self) -> bool:
        """As `refresh`, without blocking the event loop."""
        with self._in_time():
            version = await self._files.arun(self._read)
        return self._take(version)

    def check_storage(self) -> None:
        """Writes an unnamed file into the folder. Raises `ManifestError` if kills could not be stored there."""
        try:
            self._changes.run(self._try_storage)
        except OSError as error:
            raise self._not_storable(error) from error

    @contextlib.contextmanager
    def _in_time(self, problem: str = "cannot be read") -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ManifestError(f"{problem}: {error.strerror}", field=str(self.path)) from error

    def _read(self) -> _Version | None:
        """The file's content; None if it has not changed."""
        stamp = stamp_of(self.path)
        return None if stamp == self._stamp else _Version(stamp, _bytes(self.path))

    def _take(self, version: _Version | None) -> bool:
        if version is None:
            return False
        self._stamp = version.stamp
        self.stored = _decode(version.data, self.path)
        self._merge()
        return True

    def _merge(self) -> None:
        left = {pair: event for pair, event in self._unstored.items() if not is_superseded(event, self.stored)}
        self._unstored = left
        self.kills = with_turns(self.stored, left.values())

    def _try_storage(self) -> None:
        with tempfile.TemporaryFile(dir=self.path.parent) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def _not_storable(self, error: OSError) -> ManifestError:
        return ManifestError(f"{_NOT_STORABLE}: {error.strerror or error}", field=str(self.path))

    async def achange(self, edit: Callable[[Kills], Kills]) -> Kills:
        """As `change`, without blocking the event loop. A change that times out may still be written later."""
        with self._in_time(_NOT_STORABLE):
            return await self._changes.arun(partial(self.change, edit))

    def change(self, edit: Callable[[Kills], Kills]) -> Kills:
        """Replaces the file by the result of `edit`, durably and by one process at a time. Blocks meanwhile. Raises
        `ManifestError`."""
        try:
            with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                kills = edit(_decode(_bytes(self.path), self.path))
                replace_file(self.path, msgspec.json.format(msgspec.json.encode(kills)) + b"\n")
        except OSError as error:
            raise self._not_storable(error) from error
        return kills


def _bytes(path: Path) -> bytes | None:
    """The file's content, None if there is no file."""
    try:
        return read_regular(path, max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror or error}. {_REMEDY}", field=str(path)) from error


def _decode(data: bytes | None, path: Path) -> Kills:
    if data is None:
        return Kills()
    try:
        return msgspec.json.decode(data, type=Kills)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"is not a kill-switch file: {error}. {_REMEDY}", field=str(path)) from error
