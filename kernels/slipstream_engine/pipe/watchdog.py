"""Ends Triton when the Python process of a model dies, is frozen, or waits for Triton forever.

Triton itself goes on without the model and reports that it is live and ready, so that neither a kubelet nor `slipstream
up` would start it again. The cause may be the kernel, which first kills the process with the most memory.

The event loop that answers requests writes heartbeats. A step, a prefill or a compilation may take minutes in another
thread. Even if one holds Python's lock for so long, it runs, or waits for a processor or a disk: a process is frozen
only if no thread does.

Calls of Triton's own library are another matter: they take microseconds, in threads that do nothing else. One that does
not come back leaves all clients without answers, whatever the other threads do.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterable

LOOK_S = 10.0
"""A process is frozen after three such times in a row. One may be that of a container that was paused as a whole."""

_STUCK_BEATS = 7
"""Heartbeats, two per look, during one and the same call. A container that was paused had none meanwhile."""

# Waits at a pipe that the kernel closes when this process ends. The start time tells Triton from a later process with
# its id. As the first process of a container Triton ignores SIGKILL from inside, and ends after SIGTERM.
# A look without a heartbeat counts if the process used less than 5 % of a core in it (a second has 100 ticks), and no
# thread waits for a disk (the state D), runs, or waits for a processor (R). A forked child may hold the pipe after this
# process has ended: the shell then has another parent, and the id may be that of another process.
_WATCH = """
started() { cut -d ' ' -f 22 "/proc/$1/stat" 2> /dev/null; }
used_ticks() { echo $(($(cut -d ' ' --output-delimiter=+ -f 14,15 "/proc/$PPID/stat"))); }
is_child() { read -r _ _ _ parent _ < "/proc/$$/stat" && [ "$parent" = "$PPID" ]; }
is_busy() {
    [ $(($(used_ticks) - used)) -ge "$idle_ticks" ] || grep -qs '^State:.[DR]' "/proc/$PPID/task/"*/status
}
triton=$1 look_s=$2 idle_ticks=$3 at=$(started "$1") silent=0 used=$(used_ticks)
while [ "$silent" -lt 3 ] && is_child; do
    byte=$(timeout --foreground "$look_s" head -c 1)
    case $?$byte in
        0.) silent=0 ;;
        0e) exit ;;
        0x) silent=3 ;;
        0) break ;;
        124*) is_busy && silent=0 || silent=$((silent + 1)) ;;
        *) sleep 1 ;;
    esac
    used=$(used_ticks)
done
if [ "$silent" = 3 ] && is_child; then
    echo "error: the Python process of a model is frozen, or waits for Triton, so it is killed" >&2
    kill -s KILL "$PPID"
fi
[ "$(started "$triton")" = "$at" ] || exit
echo "error: the Python process of a model has ended, so Triton is ended, too" >&2
kill -s KILL "$triton"
kill -s TERM "$triton" 2> /dev/null
"""


class TritonCalls:
    """The calls of Triton's library that one thread makes, one after the other: `with calls: ...`."""

    def __init__(self) -> None:
        self._number = 0
        self._is_running = False
        self._seen, self._beats = -1, 0

    def __enter__(self) -> None:
        self._number += 1
        self._is_running = True

    def __exit__(self, *_: object) -> None:
        self._is_running = False

    def are_stuck(self) -> bool:
        """Whether the call that runs now ran at the seven heartbeats before, too. Asked once at each heartbeat."""
        number = self._number if self._is_running else -1
        self._beats = self._beats + 1 if number == self._seen else 0
        self._seen = number
        return number >= 0 and self._beats >= _STUCK_BEATS


class Watchdog:
    """Watches this process, its event loop `loop` and its `calls` of Triton from construction to `close`, for its
    parent."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, calls: Iterable[TritonCalls] = (), look_s: float = LOOK_S
    ) -> None:
        command = ["sh", "-c", _WATCH, "slipstream-watchdog", str(os.getppid()), str(look_s), str(round(look_s * 5))]
        self._loop, self._calls, self._look_s = loop, tuple(calls), look_s
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
        if self._write(b"x" if any(calls.are_stuck() for calls in self._calls) else b"."):
            self._loop.call_later(self._look_s / 2, self._beat)

    def _write(self, byte: bytes) -> bool:
        try:
            return os.write(self._pipe, byte) == 1
        except OSError:  # the watchdog has ended, or is frozen itself
            return False
