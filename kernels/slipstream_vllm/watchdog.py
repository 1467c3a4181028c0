"""Ends an engine process that is frozen. vLLM's server ends when that process has ended, but not while it hangs.

A thread writes heartbeats between Python's instructions: a step, a prefill or a compilation of minutes delays none of
them, unless it holds Python's lock, and then it uses processor time. A process is frozen only without both.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import threading
import time

LOOK_S = 10.0
"""A process is frozen after three such times in a row. One may be that of a container that was paused as a whole."""

# The pipe is closed when this process ends. 50 ticks are 0.5 s of processor time.
_WATCH = """
used_ticks() { echo $(($(cut -d ' ' --output-delimiter=+ -f 14,15 "/proc/$PPID/stat"))); }
silent=0 used=$(used_ticks)
while [ "$silent" -lt 3 ]; do
    byte=$(timeout --foreground "$1" head -c 1)
    case $?$byte in
        0.) silent=0 ;;
        0) exit ;;
        124*) [ $(($(used_ticks) - used)) -lt 50 ] && silent=$((silent + 1)) || silent=0 ;;
        *) sleep 1 ;;
    esac
    used=$(used_ticks)
done
echo "error: the engine process is frozen, so it is killed" >&2
kill -s KILL "$PPID"
"""


def install() -> None:
    """Watch this process from now to its end, if it is an engine process of a server."""
    if multiprocessing.parent_process() is not None:
        command = ["sh", "-c", _WATCH, "slipstream-watchdog", str(LOOK_S)]
        shell = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
        threading.Thread(target=_beat, args=(shell,), name="slipstream-watchdog", daemon=True).start()


def _beat(shell: subprocess.Popen[bytes]) -> None:
    while shell.poll() is None and shell.stdin is not None:
        try:
            shell.stdin.write(b".")
        except OSError:  # it has just ended
            return
        time.sleep(LOOK_S / 2)
