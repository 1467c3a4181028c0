"""Ends Triton when the Python process of a model dies or is frozen.

Triton itself goes on without the model and reports that it is live and ready, so that neither a kubelet nor `slipstream
up` would start it again. The cause may be the kernel, which first kills the process with the most memory.

The event loop that answers requests writes heartbeats. A step, a prefill or a compilation may take minutes in another
thread. Even if one holds Python's lock for so long, it uses processor time: a process is frozen only without both.
"""

from __future__ import annotations

import asyncio
import os
import subprocess

LOOK_S = 10.0
"""A process is frozen after three such times in a row. One may be that of a container that was paused as a whole."""

# Waits at a pipe that the kernel closes when this process ends. The start time tells Triton from a later process with
# its id. As the first process of a container Triton ignores SIGKILL from inside, and ends after SIGTERM.
# A look without a heartbeat counts if the process used less than 0.5 s of processor time (50 ticks) in it.
_WATCH = """
started() { cut -d ' ' -f 22 "/proc/$1/stat" 2> /dev/null; }
used_ticks() { echo $(($(cut -d ' ' --output-delimiter=+ -f 14,15 "/proc/$PPID/stat"))); }
triton=$1 look_s=$2 at=$(started "$1") silent=0 used=$(used_ticks)
while [ "$silent" -lt 3 ]; do
    byte=$(timeout --foreground "$look_s" head -c 1)
    case $?$byte in
        0.) silent=0 ;;
        0e) exit ;;
        0) break ;;
        124*) [ $(($(used_ticks) - used)) -lt 50 ] && silent=$((silent + 1)) || silent=0 ;;
        *) sleep 1 ;;
    esac
    used=$(used_ticks)
done
if [ "$silent" = 3 ]; then
    echo "error: the Python process of a model is frozen, so it is killed" >&2
    kill -s KILL "$PPID"
fi
[ "$(started "$triton")" = "$at" ] || exit
echo "error: the Python process of a model has ended, so Triton is ended, too" >&2
kill -s KILL "$triton"
kill -s TERM "$triton" 2> /dev/null
"""


class Watchdog:
    """Watches this process and its event loop `loop` from construction to `close`, for its parent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, look_s: float = LOOK_S) -> None:
        command = ["sh", "-c", _WATCH, "slipstream-watchdog", str(os.getppid()), str(look_s)]
        self._loop, self._look_s = loop, look_s
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
        assert self._shell.stdin is not None
        self._pipe = self._shell.stdin.fileno()
        os.set_blocking(self._pipe, False)
        loop.call_soon_threadsafe(self._beat)

    def close(self) -> None:
        """The end of this process is regular from now on."""
        if self._write(b"e"):
            self._shell.wait()

    def _beat(self) -> None:
        if self._write(b"."):
            self._loop.call_later(self._look_s / 2, self._beat)

    def _write(self, byte: bytes) -> bool:
        try:
            return os.write(self._pipe, byte) == 1
        except OSError:  # the watchdog has ended, or is frozen itself
            return False
