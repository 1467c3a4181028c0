"""Reads the file of classes, and reads it again when it changes. A broken new file never replaces a good one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from slipstream_vllm.classes import Classes, ClassFileError, parse

POLL_S = 1.0
MAX_BYTES = 1_000_000

Stamp = tuple[int, int, int]
"""Time of change in nanoseconds, size and inode."""


class ClassFile:
    """The classes in the file at `path`, for a server that drafts up to `most` tokens.

    `report` gets one message for each broken version of the file. `clock` returns seconds.
    """

    def __init__(
        self,
        path: Path,
        most: int,
        report: Callable[[str], object] = lambda message: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises: `ClassFileError` if the file is broken."""
        self.path = path
        self.problem: str | None = None
        """The problem of the file's present version, whose content is not in use; None if it is in use."""
        self._most = most
        self._report = report
        self._clock = clock
        self._checked_s = clock()
        self._stamp = _stamp(path)
        self._classes = _read(path, most)

    def current(self) -> Classes:
        """The last good content. Looks for a change at most once per second."""
        if (now_s := self._clock()) - self._checked_s >= POLL_S:
            self._checked_s = now_s
            self._refresh()
        return self._classes

    def _refresh(self) -> None:
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._classes = _read(self.path, self._most)
            self.problem = None
        except ClassFileError as error:
            self.problem = str(error)
            self._report(f"{self.path} changed and is broken, so the previous version stays in use: {error}")


def _stamp(path: Path) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path, most: int) -> Classes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ClassFileError(f"the file has more than {MAX_BYTES} bytes.")
        return parse(content.decode(), most)
    except UnicodeDecodeError as error:
        raise ClassFileError(f"the file is not UTF-8: byte {error.start} is {content[error.start]:#04x}.") from error
    except OSError as error:
        raise ClassFileError(f"the file cannot be read: {error.strerror}.") from error
