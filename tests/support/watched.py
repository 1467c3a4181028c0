"""A process that a watchdog watches, in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil

from tests.support.polling import PATIENCE_S, eventually

SILENT_LOOKS = 3
FORK_WITH_THE_PIPE = """
if os.fork() == 0:
    time.sleep(300)
print("forked", flush=True)
"""
"""A child that outlives the watched process, and holds the pipe of its watchdog."""


class Watched:
    """The program `code`, which takes orders from its standard input. `watchdog` is that of `target`."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.target = self.started()
        [self.watchdog] = self.target.children()

    def started(self) -> psutil.Process:
        """Waits for the watched process."""
        assert self.line() == "watched"
        return psutil.Process(self.process.pid)

    def order(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def look(self) -> set[int]:
        """The process in which the watchdog waits for a heartbeat, a new one each time."""
        return {child.pid for child in self.watchdog.children()}

    def wait_for_looks(self, number: int) -> None:
        for _ in range(number):
            before = self.look()
            eventually(lambda before=before: not self.look() <= before, "another look")

    def wait_for_watchdog(self) -> None:
        psutil.wait_procs([self.watchdog], timeout=PATIENCE_S)
        assert not self.watchdog.is_running()

    def end(self) -> str:
        """Ends all of the processes. Returns what they wrote to the standard error."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with children that wait
        return self.process.communicate()[1]
