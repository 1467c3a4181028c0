"""Deadlines for the waits of one call, and detection of servers that hang, at the cost of one timer.

A long prompt, a queue or a batch may delay a response for long. A server that is halted, or unreachable because a
network drops packets, delays it forever, and the gateway cannot see the difference. Therefore a wait for a server can
probe the server, and only a missing response to the probe ends the wait. Slow servers keep their streams, because
streams that move from a slow server slow down the others.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import TracebackType

from slipstream_core.errors import (
    ClientTimeout,
    DeadlineExceeded,
    SlipstreamError,
    UpstreamHalted,
    UpstreamStalled,
    UpstreamTimeout,
)

from slipstream_gateway.upstreams.pool import Replica

LateError = Callable[[float, str], SlipstreamError]


def upstream_late(limit_s: float, what: str) -> SlipstreamError:
    """The error after a wait for the upstream that was too long."""
    return UpstreamTimeout(f"The upstream took more than {limit_s:g} s for {what}.")


def upstream_stalled(limit_s: float, what: str) -> SlipstreamError:
    """The error after a wait for a stream that can resume on another server."""
    return UpstreamStalled(f"The upstream was silent for more than {limit_s:g} s before {what}.")


def upstream_halted(limit_s: float, what: str) -> SlipstreamError:
    """The error after a wait for a server that did not respond to a probe."""
    return UpstreamHalted("The upstream stopped responding.")


def client_late(limit_s: float, what: str) -> SlipstreamError:
    """The error after a wait for the client that was too long."""
    return ClientTimeout(f"The client took more than {limit_s:g} s to read {what}.")


class CallTimer:
    """Cancels the task that constructed it when a wait is too long, and converts that cancellation into an error.

    `deadline_s`, by `time.monotonic`, is the client's deadline. Waits need no `async def`: each costs a few attribute
    writes, so that each chunk can have one. Use as::

        with timer.waiting(30.0, "the next chunk"):
            piece = await stream.next()

    `probe` sets the server for the waits after it. After half of `within_s` such a wait probes the server, and again
    after each further half. Without a response within the other half the wait ends with `UpstreamHalted`. A server that
    did not respond to its last probe is probed at once.
    """

    def __init__(self, *, total_s: float, deadline_s: float | None = None) -> None:
        left_s = math.inf if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
        self._is_clients = left_s < total_s
        total_s = min(total_s, left_s)
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + total_s
        self._total_s = total_s
        self._due_s = self._probe_due_s = math.inf
        self._wait_s = 0.0
        self._what = ""
        self._error: LateError = upstream_late
        self._waits = False
        self._lost: LateError | None = None  # the error for which this timer cancelled the task
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = math.inf  # stored here: uvloop's handle of a time already due has no `when`
        self._server: Replica | None = None
        self._is_probed = False
        self._wait_number = 0
        self._half_s = self._patience_s = math.inf
        self._probing: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether the total time has passed."""
        return self._loop.time() >= self._end_s

    def probe(self, server: Replica | None, within_s: float = math.inf) -> None:
        """Sets the server for the following waits with `probed`. None: no server is probed."""
        self._cancel_probe()
        self._server, self._half_s = server, within_s / 2
        self._patience_s = 0.0 if server is not None and server.is_silent else self._half_s

    def waiting(self, wait_s: float, what: str, error: LateError = upstream_late, *, probed: bool = False) -> CallTimer:
        """Prepares one wait of `wait_s`, within the total time. Enter the result with `with`, which raises `error`.
        `probed`: the wait is for the server of `probe`."""
        self._wait_s, self._what, self._error = wait_s, what, error
        self._is_probed = probed and self._server is not None
        return self

    def close(self) -> None:
        """Cancels the timer and a running probe. The object can be used again."""
        self._cancel_timer()
        self._cancel_probe()

    def __enter__(self) -> None:
        now_s = self._loop.time()
        due_s = now_s + self._wait_s
        self._due_s = due_s = due_s if due_s < self._end_s else self._end_s
        self._waits = True
        if self._is_probed:
            self._wait_number += 1
            self._probe_due_s = now_s + self._patience_s
            due_s = min(due_s, self._probe_due_s)
        else:
            self._probe_due_s = math.inf
        if self._timer_due_s > due_s:
            self._cancel_timer()
            self._start_timer(due_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits = False
        if self._is_probed:
            self._patience_s = self._half_s
        if self._lost is None:
            return
        late, self._lost = self._lost, None
        # Only this timer's cancellation becomes an error; any other one stays a cancellation.
        if self._task is not None and self._task.uncancel() <= 0 and isinstance(error, asyncio.CancelledError):
            raise late(min(self._wait_s, self._total_s), self._what) from error

    def _late(self, limit_s: float, what: str) -> SlipstreamError:
        if self._due_s == self._end_s:
            if self._is_clients:
                return DeadlineExceeded(f"The request's deadline passed while it waited for {what}.")
            if self._error is upstream_stalled:  # the stream was not silent for that long
                return upstream_late(self._total_s, "the whole answer")
        return self._error(limit_s, what)

    def _start_timer(self, due_s: float) -> None:
        self._timer_due_s = due_s
        self._timer = self._loop.call_at(due_s, self._fire)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due_s = None, math.inf

    def _fire(self) -> None:
        self._timer, self._timer_due_s = None, math.inf
        if not self._waits:
            return  # the next wait starts the timer again
        now_s = self._loop.time()
        if now_s >= self._due_s:
            self._cancel_wait(self._late)
            return
        if now_s >= self._probe_due_s:
            self._start_probe()
        self._start_timer(min(self._due_s, self._probe_due_s))

    def _cancel_wait(self, error: LateError) -> None:
        self._lost = error
        if self._task is not None:
            self._task.cancel()

    def _start_probe(self) -> None:
        self._probe_due_s = math.inf
        if self._server is not None:
            self._cancel_probe()
            self._probing = self._loop.create_task(self._ask(self._server, self._wait_number))

    async def _ask(self, server: Replica, wait_number: int) -> None:
        """Probes `server` for one wait, which may have ended before the response."""
        is_alive = await server.lives(self._half_s)
        self._probing = None
        if not self._waits or self._wait_number != wait_number:
            return
        if not is_alive:
            self._cancel_wait(upstream_halted)
            return
        self._probe_due_s = self._loop.time() + self._half_s
        if self._timer_due_s > self._probe_due_s:
            self._cancel_timer()
            self._start_timer(self._probe_due_s)

    def _cancel_probe(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None
