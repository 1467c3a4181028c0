"""Files that hang whoever opens them: FIFOs, and regular ones as on a network file system that does not answer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def leased(path: Path) -> Iterator[None]:
    """While entered, opening the file waits for the lease on it (`fcntl(2)`). Only for a test's main thread."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's request to give the lease back
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)


def replace_by_fifo(path: Path) -> None:
    """What opened `path` before goes on; who opens it from now on waits for a writer."""
    fifo = path.with_name(f".{path.name}.fifo")
    os.mkfifo(fifo)
    fifo.replace(path)
