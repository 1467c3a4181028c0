"""Tells a server that takes its time from one that is gone with its connections open.

A long prompt, a queue or a crowd may keep a request waiting for long. A server that is halted, or cut off by a network
that says nothing, keeps it waiting for ever, and looks the same from here. So whoever waits asks for a sign of life:
silence alone moves nothing, as streams that leave a slow server would make the others slow.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from slipstream_core.errors import UpstreamHalted

from slipstream_gateway.upstreams.pool import Replica


class Lookout:
    """Over the waits of one attempt at `replica`, one after the other. Where one has taken half of `within_s`, the
    server is asked whether it lives, and again after every such time; without an answer in the other half the wait ends
    with `UpstreamHalted`. A server that gave no sign of life when it was last asked is asked at once.

    Use as a context around each wait, which costs next to nothing; `close` drops the timer.
    """

    def __init__(self, replica: Replica, *, within_s: float) -> None:
        self._replica = replica
        self._half_s = within_s / 2
        self._loop = asyncio.get_running_loop()
        self._patience_s = 0.0 if replica.is_silent else self._half_s
        self._waiting: asyncio.Task[object] | None = None
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._look_task: asyncio.Task[None] | None = None
        self._lost = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._look_task is not None:
            self._look_task.cancel()
            self._look_task = None

    def __enter__(self) -> None:
        self._waiting = asyncio.current_task()
        self._due_s = self._loop.time() + self._patience_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._is_due)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting, self._waiting = self._waiting, None
        self._patience_s = self._half_s
        if not self._lost:
            return
        self._lost = False
        # Only our own cancellation becomes an error: somebody else's stays one.
        if waiting is not None and waiting.uncancel() <= 0 and isinstance(error, asyncio.CancelledError):
            raise UpstreamHalted("The upstream gives no sign of life.") from error

    def _is_due(self) -> None:
        self._timer = None
        if self._waiting is None:
            return  # the next wait sets it again
        if self._loop.time() < self._due_s:
            self._timer = self._loop.call_at(self._due_s, self._is_due)
        else:
            self._look_task = self._loop.create_task(self._look(self._due_s))

    async def _look(self, due_s: float) -> None:
        """Asks for the wait that was due at `due_s`; it may be over by the time of the answer."""
        lives = await self._replica.lives(self._half_s)
        if self._waiting is None:
            return
        if self._due_s == due_s:
            if not lives:
                self._lost = True
                self._waiting.cancel()
                return
            self._due_s = self._loop.time() + self._half_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._is_due)
