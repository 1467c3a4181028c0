"""Follows the key file: every worker applies a change by itself within half a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from slipstream_core.errors import CommandError, named_os_errors
from slipstream_core.file_changes import FileStamp, replace_file, stamp_of
from slipstream_core.file_reading import FileThread

from slipstream_gateway.access.keyring import Keyring, open_keyring, pepper_path, read_file

INTERVAL_S = 0.25
_log = logging.getLogger(__name__)


class KeyFile:
    """Follows the file `keys`. A bad file never replaces a good one: the last good keys stay in force, and the problem
    is logged.

    The last good file is copied to `kept`, for a worker that starts while the file is bad; None: no copy.
    """

    def __init__(self, keys: Path, pepper: Path | None, *, kept: Path | None = None) -> None:
        self._keys = keys
        self._pepper = pepper
        self._kept = kept
        self._files = FileThread()
        self._stamps: tuple[FileStamp | None, ...] = ()
        self._said = ""

    def load(self) -> Keyring:
        """The first keyring. Raises `CommandError` with one line if the file or its pepper is bad, or cannot be read in
        time, and there is no good copy."""
        try:
            with named_os_errors(f"{self._keys}: cannot be read"):
                self._stamps = self._files.run(self._read_stamps)
                return self._files.run(self._take)
        except CommandError as exc:
            self._stamps = ()  # the first poll reads the file again
            ring = self._load_kept()
            if ring is None:
                raise
            self._log_once(exc)
            return ring

    def _load_kept(self) -> Keyring | None:
        """The keyring of the last good copy; None if there is none."""
        kept = self._kept
        if kept is None:
            return None
        with named_os_errors(f"{kept}: cannot be read"):
            return FileThread().run(lambda: self._open(read_file(kept), name=str(kept)) if kept.is_file() else None)

    async def watch(self, changed: Callable[[Keyring], None], *, interval_s: float = INTERVAL_S) -> None:
        """Calls `changed` with each new good keyring, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            stamps: tuple[FileStamp | None, ...] = ()
            try:
                with named_os_errors(f"{self._keys}: cannot be read"):  # the file may be on a slow disk or network
                    stamps = await self._files.arun(self._read_stamps)
                    if stamps == self._stamps:
                        continue
                    ring = await self._files.arun(self._take)
            except CommandError as exc:
                self._log_once(exc)
                if isinstance(exc.__cause__, OSError):
                    stamps = ()  # the file is read again as soon as it becomes readable
            except Exception as exc:  # top of the task: watching continues whatever the file contains
                _log.exception("unexpected error while reading the key file")
                self._log_once(CommandError(f"{self._keys}: cannot be used: {exc!r}"))
            else:
                changed(ring)
                self._said = ""
                _log.info("%s changed: %d keys loaded", self._keys, len(ring))
            self._stamps = stamps  # those from before the read, so that the next poll notices a change during it

    def _read_stamps(self) -> tuple[FileStamp | None, ...]:
        return tuple(stamp_of(path) for path in (self._keys, pepper_path(self._keys, self._pepper)))

    def _log_once(self, error: CommandError) -> None:
        """Logs each problem once."""
        if str(error) != self._said:
            self._said = str(error)
            _log.error("the key file is unusable, the last good one stays in force: %s", error)

    def _take(self) -> Keyring:
        """The file's keyring. Also copies the good file for workers that start later; a failed copy affects no
        request."""
        data = read_file(self._keys)
        ring = self._open(data, name=str(self._keys))
        if self._kept is not None:
            with contextlib.suppress(OSError):
                replace_file(self._kept, data, is_private=True)
        return ring

    def _open(self, data: bytes, *, name: str) -> Keyring:
        pepper = pepper_path(self._keys, self._pepper)
        return open_keyring(data, name=name, pepper=pepper, folder=self._keys.parent)
