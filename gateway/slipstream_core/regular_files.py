"""Reading a file that somebody else writes: a regular file only, up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_regular(path: Path, *, max_bytes: int) -> bytes:
    """The first `max_bytes` of the file at `path`, or of the one that a symbolic link leads to.

    Raises `OSError`, whose `strerror` says what else stands there: opening a FIFO waits for a writer, and opening a
    device may have effects. A file that is replaced between the look and the opening is caught by the second look, or
    by the caller's deadline (`FileThread`).
    """
    _check(path.stat().st_mode, path)
    with open(os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        _check(os.fstat(file.fileno()).st_mode, path)
        return file.read(max_bytes)


def _check(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, a regular file is needed", str(path))
