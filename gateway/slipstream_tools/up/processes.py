"""Child processes that never outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_AUTOGROUP = Path("/proc/self/autogroup")
_AUTOGROUP_TRIES = 5
_AUTOGROUP_PAUSE_S = 0.11
_POLL_S = 0.02
_SETTLE_S = 2.0
_KILLED_S = 0.2  # an init process that reaps nothing leaves dead processes in the group


class Stopped(Exception):
    """The user stopped the command during the preparation; there is no error to report."""


class Child:
    """A process in its own session, with its output in a log file.

    The kernel sends it SIGTERM when the thread that started it ends, for whatever reason, so it must be started from a
    thread that lives as long as the program. Because of its own session a terminal's Ctrl-C does not reach it directly:
    the parent decides the order of stopping.
    """

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        log_path: Path,
        env: Mapping[str, str],
        cwd: Path | None = None,
        nice: int = 0,
    ) -> None:
        """Starts it. `nice` lowers its priority where processes compete for a core, like nice(1)."""
        self.name = name
        self.log_path = log_path
        self._command, self._env, self._cwd, self._nice = command, env, cwd, nice
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        parent, nice = os.getpid(), self._nice

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # the parent died before the line above took effect
                os._exit(1)
            if nice:
                _lower_priority(nice)

        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - no other thread runs, and prctl takes no lock
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def exit_status(self) -> str | None:
        """None while it runs; else a description of its end."""
        code = self.exit_code
        if code is None:
            return None
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def terminate(self) -> None:
        """Requests its termination; no effect after its end."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, timeout_s: float) -> None:
        """Requests its termination, waits up to `timeout_s`, then kills the rest of its process group."""
        self.terminate()
        self.wait(timeout_s)
        self._end_group(settle_s=_SETTLE_S)

    def kill(self) -> None:
        """Kills it and the rest of its process group at once, so that their ports are free."""
        self._end_group(settle_s=0.0)

    def restart(self) -> None:
        """Kills the rest of it, and starts it again with the same log. Raises `OSError`."""
        self.kill()
        self._process = self._start()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its output since its last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _end_group(self, *, settle_s: float) -> None:
        """Kills the rest of the process group after `settle_s`, in which it may end by itself."""
        group = self._process.pid
        if not _is_gone_within(group, settle_s):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            _is_gone_within(group, _KILLED_S)
        with suppress(subprocess.TimeoutExpired):  # a process that waits for a dead disk cannot be killed
            self._process.wait(_KILLED_S)


def _lower_priority(nice: int) -> None:
    """Lowers the priority of this process, and of its session, which autogroup scheduling weighs as a unit
    (sched(7))."""
    os.nice(nice)
    for _ in range(_AUTOGROUP_TRIES):
        try:
            _AUTOGROUP.write_text(str(nice), encoding="ascii")
        except BlockingIOError:  # without privileges Linux permits one such change per 0.1 s on the whole machine
            time.sleep(_AUTOGROUP_PAUSE_S)
        except OSError:  # no automatic groups in this kernel
            return
        else:
            return


def _is_gone_within(group: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _group_alive(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
