"""Ends a process of vLLM that is frozen: a front end, an engine or a worker. Where one of them has ended, vLLM ends the
server itself, or the node of one. It waits for a frozen one: 300 s for a worker's step, for the others without end.

A thread writes heartbeats between Python's instructions: a step, a prefill or a compilation of minutes delays none of
them, unless it holds Python's lock. Then it runs, or waits for a processor or a disk: a process is frozen only if no
thread does.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import threading
import time
from functools import cache

LOOK_S = 10.0
"""A process is frozen after three such times in a row. One may be that of a container that was paused as a whole."""

# The pipe is closed when this process ends, or its last forked child: the shell then has another parent before, and the
# id may be that of another process. 50 ticks are 0.5 s of processor time. The state of a thread is D if it
# waits for a disk, and R if it runs, or waits for a processor.
_WATCH = """
used_ticks() { echo $(($(cut -d ' ' --output-delimiter=+ -f 14,15 "/proc/$PPID/stat"))); }
is_child() { read -r _ _ _ parent _ < "/proc/$$/stat" && [ "$parent" = "$PPID" ]; }
is_busy() { [ $(($(used_ticks) - used)) -ge 50 ] || grep -qs '^State:.[DR]' "/proc/$PPID/task/"*/status; }
silent=0 used=$(used_ticks)
while [ "$silent" -lt 3 ] && is_child; do
    byte=$(timeout --foreground "$1" head -c 1)
    case $?$byte in
        0.) silent=0 ;;
        0) exit ;;
        124*) is_busy && silent=0 || silent=$((silent + 1)) ;;
        *) sleep 1 ;;
    esac
    used=$(used_ticks)
done
is_child || exit
echo "error: the process $PPID of vLLM is frozen, so it is killed" >&2
kill -s KILL "$PPID"
"""


def install(*, look_s: float = LOOK_S) -> None:
    """Watch this process from now to its end. A second call does nothing."""
    _install(os.getpid(), look_s)


def install_in_engine() -> None:
    """Watch this process if it is an engine or a worker of a server, and not a program that holds the engine itself."""
    if multiprocessing.parent_process() is not None:
        install()


@cache  # by process: workers may be forked from a process that is watched
def _install(pid: int, look_s: float) -> None:
    command = ["sh", "-c", _WATCH, "slipstream-watchdog", str(look_s)]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
    threading.Thread(target=_beat, args=(shell, look_s), name="slipstream-watchdog", daemon=True).start()


def _beat(shell: subprocess.Popen[bytes], look_s: float) -> None:
    while shell.poll() is None and shell.stdin is not None:
        try:
            shell.stdin.write(b".")
        except OSError:  # it has just ended
            return
        time.sleep(look_s / 2)
