"""Installations and conversions that all processes of `slipstream up` share: one process at a time makes them."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream_core.environment import CACHE_VARIABLE
from slipstream_core.errors import CommandError

from slipstream_tools.up.processes import Stopped

_POLL_S = 0.2

Report = Callable[[str], None]
"""Prints one progress line."""


@contextmanager
def exclusive(path: Path, *, report: Report, stopping: Callable[[], bool]) -> Iterator[None]:
    """Holds the lock file `path`, which one process at a time can have; its folder is created.

    Raises:
        CommandError: the folder is not writable.
        Stopped: `stopping()` became true while another process held the lock.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as exc:
        raise CommandError(
            f"{path.parent} is not writable ({exc.strerror}); choose another folder with {CACHE_VARIABLE}"
        ) from exc
    with file:
        waiting = False
        while not _locked(file.fileno()):
            if not waiting:
                report(f"waiting for another process that uses {path.parent} …")
                waiting = True
            if stopping():
                raise Stopped
            time.sleep(_POLL_S)
        yield  # closing the file releases the lock, and so does the end of the process


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
