"""Changes of files: noticed by their attributes, and made as a whole."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import NamedTuple


class FileStamp(NamedTuple):
    """File attributes that change on a write, a replacement, a rename or a new target of a symbolic link, by which a
    mounted Secret is replaced."""

    modified_ns: int
    changed_ns: int
    size: int
    inode: int


_UNREADABLE = FileStamp(-1, -1, -1, -1)


def stamp_of(path: Path) -> FileStamp | None:
    """The stamp of the file at `path`; None if there is no file. An error has a stamp of its own, because the read
    reports it."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return _UNREADABLE
    return FileStamp(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def replace_file(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Writes `path` atomically and durably, although several processes write it: neither readers nor a crash see a
    partial file. `is_private`: a new file is readable by its owner alone, and an existing file keeps its permissions,
    so that a gateway of another user sees revoked keys."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    if is_private:
        new.unlink(missing_ok=True)  # its permissions must not be those of a leftover
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if is_private else os.O_TRUNC)
    descriptor = os.open(new, flags, 0o600 if is_private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if is_private:
                _keep_permissions(path, descriptor)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        new.replace(path)
        _sync_folder(path.parent)
    finally:
        new.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Makes the replacement durable where the file system can: some network file systems refuse this for folders, and
    the file itself has been written."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep_permissions(path: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the file is new, or its group is one that we may not set
        before = path.stat()
        os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
