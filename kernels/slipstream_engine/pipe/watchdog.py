"""Ends Triton when the Python process of a model dies.

Triton itself goes on without the model and reports that it is live and ready, so that neither a kubelet nor `slipstream
up` would start it again. The cause may be the kernel, which first kills the process with the most memory.
"""

from __future__ import annotations

import os
import subprocess

# Waits at a pipe that the kernel closes when this process ends. The start time tells Triton from a later process with
# its id. As the first process of a container Triton ignores SIGKILL from inside, and ends after SIGTERM.
_WATCH = """
started() { cut -d ' ' -f 22 "/proc/$1/stat" 2> /dev/null; }
triton=$1 at=$(started "$1")
read -r end && exit
[ "$(started "$triton")" = "$at" ] || exit
echo "error: the Python process of a model has ended, so Triton is ended, too" >&2
kill -s KILL "$triton"
kill -s TERM "$triton" 2> /dev/null
"""


class Watchdog:
    """Watches this process from its construction to `close`, for its parent."""

    def __init__(self) -> None:
        command = ["sh", "-c", _WATCH, "slipstream-watchdog", str(os.getppid())]
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE)

    def close(self) -> None:
        """The end of this process is regular from now on."""
        self._shell.communicate(b"\n")
