"""What `slipstream up` installs or converts once is shared by all its processes: one at a time makes it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.settings import CACHE_VARIABLE

from slipstream_tools.up.processes import Stopped

_POLL_S = 0.2

Say = Callable[[str], None]
"""Shows one line of progress to a person."""


@contextmanager
def exclusive(path: Path, *, say: Say, stopping: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock file `path`, which one process at a time can have; its folder is made.

    Raises:
        CommandError: the folder cannot be written.
        Stopped: `stopping()` became true while another process held the lock.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as exc:
        raise CommandError(
            f"{path.parent} cannot be written ({exc.strerror}); choose another folder with {CACHE_VARIABLE}"
        ) from exc
    with file:
        waiting = False
        while not _locked(file.fileno()):
            if not waiting:
                say(f"waiting for another process that works in {path.parent} …")
                waiting = True
            if stopping():
                raise Stopped
            time.sleep(_POLL_S)
        yield  # closing the file frees the lock, and so does the end of the process


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
