"""A manifest file: loaded once, or watched while the last good table is kept."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from slipstream_core.errors import ManifestError
from slipstream_core.file_changes import FileStamp, replace_file, stamp_of
from slipstream_core.file_reading import FileThread, read_regular
from slipstream_core.manifest.parse import MAX_BYTES, parse
from slipstream_core.manifest.table import LOCAL, RoutingTable, compile_table

LOOK_EVERY_S = 0.025  # a kill must take effect within 100 ms, and a poll costs one stat call
# Kernels stamp files with a clock that advances in steps of some milliseconds, network file systems in longer steps.
_STAMP_RESOLUTION_NS = 2_000_000_000

EMBEDDED_MANIFEST = Path(__file__).parent.parent / "examples" / "embedded.yaml"


def load_file(path: Path | str) -> RoutingTable:
    """The routing table of the manifest at `path`.

    Raises:
        ManifestError: the file cannot be read or has problems; each line of the message begins with the file's name.
    """
    return compile_file(Path(path), read_file(Path(path)))


def read_file(path: Path) -> bytes:
    """The bytes of the manifest at `path`. Raises `ManifestError` if it cannot be read in time."""
    try:
        return FileThread().run(partial(_read, path))
    except OSError as error:
        raise _unreadable(path, error) from error


def compile_file(path: Path, data: bytes, *, local_endpoints: Sequence[str] = LOCAL) -> RoutingTable:
    """The routing table of `data`, which was read from `path`. Raises `ManifestError`."""
    objects = parse(data, name=path.name)
    try:
        folder = FileThread().run(path.resolve).parent
    except OSError as error:
        raise _unreadable(path, error) from error
    return compile_table(objects, folder=folder, local_endpoints=local_endpoints)


class ManifestFile:
    """Follows one manifest file. `table` is always the last good table.

    `on_change` is called with every new table. `on_error` is called once for every new problem, and the old table
    stays. Both run on the event loop's thread and must not block. A table for which `on_change` raises counts as bad.

    `last_good` is a copy of the last good manifest, for processes that start while the manifest is bad.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        on_change: Callable[[RoutingTable], None],
        on_error: Callable[[ManifestError], None],
        local_endpoints: Sequence[str] = LOCAL,
        last_good: Path | None = None,
    ) -> None:
        """Loads the file. Raises `ManifestError` if that fails and there is no last good copy."""
        self._path = Path(path)
        self._on_change = on_change
        self._on_error = on_error
        self._local_endpoints = tuple(local_endpoints)
        self._last_good = last_good
        self._last_error = ""
        self._files = FileThread()
        self._stamp: FileStamp | None = None  # the first poll reads the file again: it may have changed meanwhile
        try:
            data = read_file(self._path)
            self.table = self._compile(data)
        except ManifestError as error:
            if last_good is None:
                raise
            data = read_file(last_good)
            self.table = self._compile(data)
            self._report(error, None)
        self._digest = _digest(data)

    async def watch(self, *, interval_s: float = LOOK_EVERY_S) -> None:
        """Polls for changes every `interval_s` until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.refresh()

    async def refresh(self) -> None:
        """Polls once. A file with an unchanged stamp is not read. Polling, reading and parsing run in threads."""
        stamp = None
        try:
            stamp = await self._files.arun(partial(stamp_of, self._path))
            if stamp is not None and stamp == self._stamp and not _is_fresh(stamp):
                return
            await self._take()
        except OSError as error:
            self._report(_unreadable(self._path, error), None)  # the file is read again as soon as it becomes readable
        except ManifestError as error:
            self._report(error, stamp)
        except Exception as error:  # top of the task: watching continues whatever a table raises
            self._report(ManifestError(f"cannot be used: {error!r}", field=self._path.name), stamp)
        else:
            self._stamp, self._last_error = stamp, ""

    async def _take(self) -> None:
        """Reads the file and makes it current if it differs. Either all of that happens or nothing."""
        data = await self._files.arun(partial(_read, self._path))
        digest = _digest(data)
        if digest == self._digest:
            return
        table = await asyncio.to_thread(self._compile, data)
        self._on_change(table)
        self._digest, self.table = digest, table
        if self._last_good is not None:
            try:
                await self._files.arun(partial(replace_file, self._last_good, data))
            except OSError as error:
                message = f"is in use, but no copy of it could be written: {error.strerror or error}"
                raise ManifestError(message, field=self._path.name) from error

    def _compile(self, data: bytes) -> RoutingTable:
        return compile_file(self._path, data, local_endpoints=self._local_endpoints)

    def _report(self, error: ManifestError, stamp: FileStamp | None) -> None:
        """Reports the problem once. The same bad file is not read again until it is touched."""
        self._stamp = stamp
        if str(error) != self._last_error:
            self._last_error = str(error)
            self._on_error(error)


def _read(path: Path) -> bytes:
    return read_regular(path, max_bytes=MAX_BYTES + 1)


def _unreadable(path: Path, error: OSError) -> ManifestError:
    return ManifestError(f"cannot be read: {error.strerror or error}", field=str(path))


def _is_fresh(stamp: FileStamp) -> bool:
    """Whether the file changed so recently that a further change could have left the same stamp."""
    return abs(time.time_ns() - stamp.modified_ns) < _STAMP_RESOLUTION_NS


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
