"""Deadlines on the outside world for one call, and the detection of servers that hang, at the price of one timer.

A long prompt, a queue or a batch may keep a request waiting for long. A server that is halted, or cut off by a network
that drops packets, keeps it waiting for ever and looks the same from here. A wait for a server can therefore probe it:
only a missing answer to the probe ends the wait, as streams that leave a slow server would slow the others down.
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
    """The error of a wait for the upstream."""
    return UpstreamTimeout(f"The upstream took more than {limit_s:g} s for {what}.")


def upstream_stalled(limit_s: float, what: str) -> SlipstreamError:
    """The error of a wait for a stream that can resume on another server."""
    return UpstreamStalled(f"The upstream was silent for more than {limit_s:g} s before {what}.")


def upstream_halted(limit_s: float, what: str) -> SlipstreamError:
    """The error of a wait for a server that does not answer its probes."""
    return UpstreamHalted("The upstream stopped responding.")


def client_late(limit_s: float, what: str) -> SlipstreamError:
    """The error of a wait for the client."""
    return ClientTimeout(f"The client took more than {limit_s:g} s to read {what}.")


class CallTimer:
    """Cancels the task that made it when one of its waits takes too long, and turns that cancellation into an error.

    `deadline_s`, by `time.monotonic`, is the client's. `async def`-free on purpose: a wait costs a few attribute
    writes, so that each chunk can have one. Use as::

        with timer.waiting(30.0, "the next chunk"):
            piece = await stream.next()

    `probe` names a server for the waits after it. Once such a wait has taken half of `within_s`, the server is probed,
    and again after every further half; without an answer in the other half the wait ends with `UpstreamHalted`. A
    server that did not answer its last probe is probed at once.
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
        self._lost: LateError | None = None  # why this timer cancelled the task
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = math.inf  # kept here: uvloop's handle of a time that is due at once has no `when`
        self._server: Replica | None = None
        self._is_probed = False
        self._wait_number = 0
        self._half_s = self._patience_s = math.inf
        self._probing: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether the total has passed."""
        return self._loop.time() >= self._end_s

    def probe(self, server: Replica | None, within_s: float = math.inf) -> None:
        """Probes `server` during the waits from now on that ask for it; None: probes no server."""
        self._cancel_probe()
        self._server, self._half_s = server, within_s / 2
        self._patience_s = 0.0 if server is not None and server.is_silent else self._half_s

    def waiting(self, wait_s: float, what: str, error: LateError = upstream_late, *, probed: bool = False) -> CallTimer:
        """Arms for one wait of `wait_s`, within the total; enter the result with `with`, which raises `error`.
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
        # Only our own cancellation becomes an error: that of others stays one.
        if self._task is not None and self._task.uncancel() <= 0 and isinstance(error, asyncio.CancelledError):
            raise late(min(self._wait_s, self._total_s), self._what) from error

    def _late(self, limit_s: float, what: str) -> SlipstreamError:
        if self._due_s == self._end_s:
            if self._is_clients:
                return DeadlineExceeded(f"The request's deadline passed while it waited for {what}.")
            if self._error is upstream_stalled:  # it was not silent for so long
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
        """Probes `server` for one wait, which may be over by the time of the answer."""
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
