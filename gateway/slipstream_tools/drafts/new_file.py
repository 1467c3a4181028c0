"""New files for their owner alone, which are there once they are whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from slipstream_core.errors import named_os_errors


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """A new file for its owner alone, which is there once it is whole. Raises `CommandError`."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    with named_os_errors(path):
        if path.exists():
            raise FileExistsError(errno.EEXIST, "the file exists")
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                yield file
            hidden.rename(path)
        finally:
            hidden.unlink(missing_ok=True)
