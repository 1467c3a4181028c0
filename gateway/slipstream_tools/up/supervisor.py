"""Starts a process of `slipstream up` again after it ended, as systemd and kubelets do."""

from __future__ import annotations

import time
from collections.abc import Callable

from slipstream_core.errors import CommandError

from slipstream_tools.up.cache import Report
from slipstream_tools.up.server import Server

MAX_FAILED_STARTS = 4
STABLE_S = 10.0
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0)


class Supervisor:
    """Supervises a server that has become ready. It is started again at once; if it ends again before it was up for
    `STABLE_S`, after a pause, which grows up to 8 s. A start may take `start_limit_s`."""

    def __init__(
        self,
        server: Server,
        *,
        start_limit_s: float,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._start_limit_s = start_limit_s
        self._report = report
        self._clock = clock
        self._up_s = clock()  # since when it is up
        self._down_s: float | None = None  # since when it is down; None: it is up
        self._start_s: float | None = None  # when it will be started; None: it runs
        self._late_s = 0.0  # until when a start may take
        self._ends = 0  # since it was stable
        self._failed_starts = 0  # in a row

    def look(self) -> None:
        """Does what is due, without waiting. Must be called often, from a thread that lives as long as the program (see
        `Child`).

        Raises:
            CommandError: the server failed to start `MAX_FAILED_STARTS` times in a row.
        """
        now_s = self._clock()
        if self._start_s is not None:
            if now_s >= self._start_s:
                self._start(now_s)
        elif self._down_s is None:
            self._watch(now_s)
        else:
            self._watch_start(now_s, self._down_s)

    def _watch(self, now_s: float) -> None:
        if (status := self._server.child.exit_status()) is not None:
            if now_s - self._up_s >= STABLE_S:
                self._ends = 0
            self._down_s = now_s
            self._schedule(now_s, f"{self._name} {status}")

    def _watch_start(self, now_s: float, down_s: float) -> None:
        if (status := self._server.child.exit_status()) is not None:
            self._failed(now_s, f"{self._name} {status} while starting: {self._server.failure()}")
        elif self._server.is_up():
            self._report(f"{self._name} is up again after {now_s - down_s:.1f} s")
            self._up_s, self._down_s, self._failed_starts = now_s, None, 0
        elif now_s > self._late_s:
            self._failed(now_s, f"{self._name} is not up {self._start_limit_s:g} s after its start")

    def _start(self, now_s: float) -> None:
        self._start_s, self._late_s = None, now_s + self._start_limit_s
        try:
            self._server.restart()
        except OSError as exc:
            self._failed(now_s, f"{self._name} cannot be started: {exc}")

    def _failed(self, now_s: float, why: str) -> None:
        self._failed_starts += 1
        if self._failed_starts == MAX_FAILED_STARTS:
            child, times = self._server.child, f"{MAX_FAILED_STARTS} times in a row"
            message = f"{why}. It failed to start {times}; the end of its log {child.log_path}:"
            raise CommandError(message, tail=child.log_tail())
        self._schedule(now_s, why)

    def _schedule(self, now_s: float, why: str) -> None:
        pause_s = _PAUSES_S[min(self._ends, len(_PAUSES_S) - 1)]
        self._ends += 1
        self._start_s = now_s + pause_s
        when = f" in {pause_s:g} s" if pause_s else ""
        self._report(f"{why}; it is started again{when} (log: {self._server.child.log_path})")

    @property
    def _name(self) -> str:
        return self._server.child.name
