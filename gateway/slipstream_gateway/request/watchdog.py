"""Deadlines on the outside world for one request, at the price of one timer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import TracebackType

from slipstream_core.errors import ClientTimeout, DeadlineExceeded, SlipstreamError, UpstreamStalled, UpstreamTimeout

LateError = Callable[[float, str], SlipstreamError]


def upstream_late(limit_s: float, what: str) -> SlipstreamError:
    """The error of a wait for the upstream."""
    return UpstreamTimeout(f"The upstream took more than {limit_s:g} s for {what}.")


def upstream_stalled(limit_s: float, what: str) -> SlipstreamError:
    """The error of a wait for a stream that can go on elsewhere."""
    return UpstreamStalled(f"The upstream was silent for more than {limit_s:g} s before {what}.")


def client_late(limit_s: float, what: str) -> SlipstreamError:
    """The error of a wait for the client."""
    return ClientTimeout(f"The client took more than {limit_s:g} s to read {what}.")


class Watchdog:
    """Cancels the running task when a wait takes too long, and turns that into an error of ours.

    `deadline_s`, by `time.monotonic`, is the client's: a wait that it ends is nobody's fault.

    `async def`-free on purpose: arming costs two attribute writes, so that it can be done for every chunk. Use as::

        with watchdog.waiting(30.0, "the next chunk"):
            piece = await stream.next()
    """

    def __init__(self, *, total_s: float, deadline_s: float | None = None) -> None:
        left_s = math.inf if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
        self._is_clients = left_s < total_s
        total_s = min(total_s, left_s)
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + total_s
        self._total_s = total_s
        self._due_s = 0.0
        self._wait_s = 0.0
        self._what = ""
        self._error: LateError = upstream_late
        self._armed = False
        self._expired = False
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0  # kept here: uvloop's handle for a time that is due at once does not tell it

    @property
    def over(self) -> bool:
        """Whether the total has passed."""
        return self._loop.time() >= self._end_s

    def waiting(self, wait_s: float, what: str, error: LateError = upstream_late) -> Watchdog:
        """Arms for one wait of `wait_s`, within the total; enter the result with `with`, which raises `error`."""
        self._wait_s, self._what, self._error = wait_s, what, error
        return self

    def close(self) -> None:
        """Drops the timer. The watchdog can be used again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        due_s = self._loop.time() + self._wait_s
        self._due_s = due_s if due_s < self._end_s else self._end_s
        self._armed = True
        if self._timer is None or self._timer_due_s > self._due_s:
            self.close()
            self._start_timer()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._armed = False
        if not self._expired:
            return
        self._expired = False
        # Only our own cancellation becomes a timeout: somebody else's stays one.
        if self._task is not None and self._task.uncancel() <= 0 and isinstance(error, asyncio.CancelledError):
            raise self._late_error() from error

    def _late_error(self) -> SlipstreamError:
        if self._due_s == self._end_s:
            if self._is_clients:
                return DeadlineExceeded(f"The request's deadline passed while it waited for {self._what}.")
            if self._error is upstream_stalled:  # it was not silent for so long
                return upstream_late(self._total_s, "the whole answer")
        return self._error(min(self._wait_s, self._total_s), self._what)

    def _fire(self) -> None:
        self._timer = None
        if not self._armed:
            return
        if self._loop.time() < self._due_s:
            self._start_timer()
            return
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    def _start_timer(self) -> None:
        self._timer_due_s = self._due_s
        self._timer = self._loop.call_at(self._due_s, self._fire)
