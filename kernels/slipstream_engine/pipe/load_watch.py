"""Ends the process of a model that Triton gives up while it loads.

Triton expects a heartbeat of that process every second. On a busy machine a heartbeat may be late. Triton 2.51 then
takes the process for dead. It waits for the end of the process, without a time limit and without ending it, so the
server neither becomes ready nor fails. The waiting thread of Triton is visible in `/proc`.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

_WAITING = "do_wait"
"""Linux's name for a thread that waits for the end of a child process. Triton has such a thread while it loads models
only if it has given one up."""
_LOOK_S, _LOOKS = 1.0, 3
MESSAGE = "Triton has given up this model while it loaded, because the machine was too busy"


class LoadWatch:
    """Watches the Triton that is the process `triton`, from construction to `close`."""

    def __init__(self, triton: int) -> None:
        self._tasks = Path("/proc", str(triton), "task")
        self._loaded = threading.Event()
        threading.Thread(target=self._run, name="slipstream-load-watch", daemon=True).start()

    def close(self) -> None:
        """Triton has loaded its models. May be called again."""
        self._loaded.set()

    def _run(self) -> None:
        looks = 0
        while not self._loaded.wait(_LOOK_S):
            looks = looks + 1 if self._is_given_up() else 0
            if looks >= _LOOKS:
                print(f"error: {MESSAGE}", file=sys.stderr, flush=True)
                os._exit(1)

    def _is_given_up(self) -> bool:
        try:
            return any(task.read_text(encoding="ascii") == _WAITING for task in self._tasks.glob("*/wchan"))
        except OSError:  # a thread has ended
            return False
