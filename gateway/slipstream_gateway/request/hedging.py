"""A second attempt for plain, unstreamed requests that take longer than nearly all others do; the first answer counts.

Off unless the policy's `hedgeShare` says what share of such requests may have one. It begins when the request has taken
as long as 95 % of the pair's recent ones, at another server, and not while places are scarce: like drafts, it is work
that nobody asked for. Who loses is cancelled. Streams are never hedged, as their first token would have to wait for a
winner; nor is what speculates, or is a control of it, whose times are compared.

Dean, Barroso: The Tail at Scale (CACM 2013), "hedged requests".
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

import msgspec
from slipstream_core.errors import Overloaded, UpstreamError
from slipstream_core.types import Arm

from slipstream_gateway.request.attempt import Attempt
from slipstream_gateway.request.causes import cause_of
from slipstream_gateway.request.exchange import Exchange
from slipstream_gateway.request.legs import Leg
from slipstream_gateway.upstreams.base import Completion, Job
from slipstream_gateway.upstreams.pool import Replica

_KEPT = 128
_ENOUGH = 20
_QUANTILE = 0.95
_MOST_TOKENS = 10.0
Ask = Callable[[Replica, Job], Coroutine[Any, Any, Completion]]


class HedgeResult(StrEnum):
    """What became of a second attempt: it gave the answer, came too late, failed; or was not made for want of budget
    or of a server."""

    WON = "won"
    LOST = "lost"
    FAILED = "failed"
    NO_BUDGET = "no_budget"
    NO_SERVER = "no_server"


class _Pace:
    """One pair's recent answer times, and how many hedges it may still make."""

    __slots__ = ("durations_s", "tokens")

    def __init__(self) -> None:
        self.durations_s: deque[float] = deque(maxlen=_KEPT)
        self.tokens = 1.0

    def delay_s(self) -> float | None:
        """How long 95 % of the requests take; None where too few are known."""
        if len(self.durations_s) < _ENOUGH:
            return None
        return sorted(self.durations_s)[int(_QUANTILE * len(self.durations_s))]


class Hedging:
    """Runs requests that are not streamed. `counts` are the hedges by pair and result."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._paces: dict[str, _Pace] = {}

    async def complete(
        self, exchange: Exchange, leg: Leg, replica: Replica, job: Job, ask: Ask, *, share: float, calm: bool
    ) -> Completion:
        """The answer to `job`, which `exchange` has begun to attempt at `replica`; `ask` gets it from a replica.
        `share` is the policy's, `calm` False while places are scarce. Raises what the attempt that is left raises."""
        if share <= 0.0 or leg.decision.arm is not Arm.PLAIN or len(leg.pool.replicas) < 2:
            return await ask(replica, job)
        pace = self._paces.setdefault(exchange.pair, _Pace())
        pace.tokens = min(pace.tokens + share, _MOST_TOKENS)
        began_s, delay_s = time.perf_counter(), pace.delay_s()
        if delay_s is None or not calm:
            completion = await ask(replica, job)
        else:
            completion = await self._race(exchange, leg, replica, job, ask, delay_s, pace)
        pace.durations_s.append(time.perf_counter() - began_s)
        return completion

    async def _race(
        self, exchange: Exchange, leg: Leg, replica: Replica, job: Job, ask: Ask, delay_s: float, pace: _Pace
    ) -> Completion:
        first = asyncio.create_task(ask(replica, job))
        try:
            done, _ = await asyncio.wait([first], timeout=delay_s)
            other = None if done else self._other(exchange.pair, leg, replica, pace)
            if other is None:
                return await first
            return await self._with_second(exchange, leg, first, other, job, ask)
        finally:
            await _cancel(first)

    def _other(self, pair: str, leg: Leg, replica: Replica, pace: _Pace) -> Replica | None:
        """Where a second attempt may go."""
        if pace.tokens < 1.0:
            self._count(pair, HedgeResult.NO_BUDGET)
            return None
        other = leg.pool.pick([replica])
        if other is None:
            self._count(pair, HedgeResult.NO_SERVER)
            return None
        pace.tokens -= 1.0
        return other

    async def _with_second(
        self, exchange: Exchange, leg: Leg, first: asyncio.Task[Completion], other: Replica, job: Job, ask: Ask
    ) -> Completion:
        """The first success of two attempts."""
        attempt, handed_over = Attempt(leg, other), False
        second = asyncio.create_task(ask(other, _renamed(job)))
        try:
            await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
            error = _blamed(first) if first.done() else None
            if first.done() and error is None:
                self._count(exchange.pair, HedgeResult.LOST)
                return first.result()
            if not first.done() and (failed := _blamed(second)) is not None:
                attempt.failed(cause_of(failed))
                self._count(exchange.pair, HedgeResult.FAILED)
                return await first
            exchange.hand_over(attempt, error)
            handed_over = True
            completion = await second
            self._count(exchange.pair, HedgeResult.WON)
            return completion
        finally:
            await _cancel(second)
            if not handed_over:
                attempt.release()

    def _count(self, pair: str, result: HedgeResult) -> None:
        key = (pair, str(result))
        self.counts[key] = self.counts.get(key, 0) + 1


def _renamed(job: Job) -> Job:
    """Servers tell requests apart by their ids."""
    return msgspec.structs.replace(job, request_id=f"{job.request_id}-hedge")


def _blamed(task: asyncio.Task[Completion]) -> UpstreamError | Overloaded | None:
    """What a task that is done failed with by its server's fault. What is the request's would be the same anywhere."""
    error = task.exception()
    return error if isinstance(error, UpstreamError | Overloaded) else None


async def _cancel(task: asyncio.Task[Completion]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    elif not task.cancelled():
        task.exception()  # looked at, whoever lost: else asyncio complains of it
