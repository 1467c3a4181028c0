"""Whether the GNU make that started this command was interrupted, or has ended.

make passes SIGTERM on to its commands, but not SIGINT: it expects the terminal to send that to all of them, and waits
until they end. So a SIGINT to make alone, as a script sends it, would do nothing. While make waits, it no longer
catches SIGINT, which `/proc` shows. Without `/proc`, nothing is noticed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_NAMES = frozenset({"make", "gmake"})
_CAUGHT = "SigCgt:"
_BIT = 1 << (signal.SIGINT - 1)


class ParentMake:
    """The parent of this process at the start, if it is a make that catches SIGINT."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self._folder = Path("/proc", str(self._pid))
        self._is_watched = self._is_make() and self._catches_interrupt()

    def is_interrupted(self) -> bool:
        """Whether it waits for the end of this process, or has ended itself."""
        return self._is_watched and (os.getppid() != self._pid or not self._catches_interrupt())

    def _is_make(self) -> bool:
        try:
            return (self._folder / "comm").read_text().strip() in _NAMES
        except OSError:
            return False

    def _catches_interrupt(self) -> bool:
        try:
            lines = (self._folder / "status").read_text().splitlines()
        except OSError:  # make has ended
            return False
        return any(line.startswith(_CAUGHT) and int(line.removeprefix(_CAUGHT), 16) & _BIT for line in lines)
