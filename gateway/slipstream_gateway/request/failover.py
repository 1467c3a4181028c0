"""Streams that go on where their server broke them off: at another one, after what the client has.

The answer stays the one it would have been (see `resume.journal_of` for which can), its usage counts once. A stream
looks for a server for some seconds, for a crowd may come at once where one went down, and goes on a few times at most:
one that breaks more often may be what breaks its servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec
from slipstream_core.errors import (
    Overloaded,
    RequestError,
    SlipstreamError,
    UpstreamError,
    UpstreamHalted,
    UpstreamTimeout,
)
from slipstream_core.manifest import Protocol as WireProtocol
from slipstream_core.settings import Deadlines
from slipstream_core.types import GenerationRequest

from slipstream_gateway.fleet.fleet import Fleet, ServedRoute, Snapshot
from slipstream_gateway.request.attempt import Attempt
from slipstream_gateway.request.causes import cause_of
from slipstream_gateway.request.exchange import Exchange
from slipstream_gateway.request.legs import Leg, has_elsewhere, next_attempts
from slipstream_gateway.request.lookout import Lookout
from slipstream_gateway.request.resume import Journal, same_target
from slipstream_gateway.request.retry_budget import RetryBudget
from slipstream_gateway.upstreams.base import Committed, Piece, Stream
from slipstream_gateway.upstreams.pool import Replica

MAX_RESUMPTIONS = 3
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_log = logging.getLogger(__name__)

Open = Callable[[Leg, Replica, Committed], Awaitable[Stream]]


class Result(StrEnum):
    """What became of a stream that broke off: `NOT_RESUMABLE` by the request, its server or the policy."""

    RESUMED = "resumed"
    NOT_RESUMABLE = "not_resumable"
    NO_SERVER = "no_server"
    NO_BUDGET = "no_budget"
    TOO_OFTEN = "too_often"


_FINAL = (Result.RESUMED, Result.NOT_RESUMABLE)


class ResumptionCount(msgspec.Struct, frozen=True, kw_only=True):
    """How often streams of one pair and class broke off after their first byte, by `cause` and by what became of it.

    `cause`: `upstream_unavailable`, `upstream_failed`, `upstream_timeout`, or `stalled`.
    """

    pair: str
    request_class: str
    cause: str
    result: Result
    count: int


class Failover:
    """What the continuations of all streams share, and how often each kind of them came to be."""

    def __init__(self, *, fleet: Fleet, retries: RetryBudget, deadlines: Deadlines) -> None:
        self.fleet = fleet
        self.retries = retries
        self.deadlines = deadlines
        self._counts: dict[tuple[str, str, str, Result], int] = {}

    def continuation(
        self,
        served: ServedRoute,
        leg: Leg,
        replica: Replica,
        request: GenerationRequest,
        journal: Journal | None,
        open_: Open,
    ) -> Continuation:
        """How the stream that `replica` gives for `request`, noted in `journal`, could go on."""
        return Continuation(
            self,
            served=served,
            request=request,
            journal=journal,
            open_=open_,
            silence_tells=leg.backend.protocol is not WireProtocol.TRITON and has_elsewhere(served, replica),
        )

    def lookout(self, served: ServedRoute, leg: Leg, replica: Replica) -> Lookout | None:
        """Over the waits for `replica`, where there is another server to turn to. Triton answers a probe however busy
        the model is; of other servers nobody knows."""
        if leg.backend.protocol is not WireProtocol.TRITON or not has_elsewhere(served, replica):
            return None
        return Lookout(replica, within_s=self.deadlines.stall_s)

    def counts(self) -> list[ResumptionCount]:
        """All so far, for somebody who looks."""
        return [
            ResumptionCount(pair=pair, request_class=request_class, cause=cause, result=result, count=count)
            for (pair, request_class, cause, result), count in list(self._counts.items())
        ]

    def count(self, pair: str, request_class: str, cause: str, result: Result) -> None:
        """One more."""
        key = (pair, request_class, cause, result)
        self._counts[key] = self._counts.get(key, 0) + 1


class Continuation:
    """How one stream goes on; made with it, for next to nothing, and closed with it.

    `open_` opens the request anew after what is committed. A stream that is silent for `patience_s` has broken off:
    soon where it can go on elsewhere and silence is all there is to go by, else only when there is no hope left.
    """

    def __init__(
        self,
        failover: Failover,
        *,
        served: ServedRoute,
        request: GenerationRequest,
        journal: Journal | None,
        open_: Open,
        silence_tells: bool,
    ) -> None:
        self._failover = failover
        self._served = served
        self._request = request
        self._journal = journal
        self._open = open_
        self._entered: list[Snapshot] = []
        deadlines = failover.deadlines
        self.stalls = journal is not None and silence_tells and deadlines.stall_s < deadlines.between_chunks_s
        self.patience_s = deadlines.stall_s if self.stalls else deadlines.between_chunks_s
        self.note: Callable[[Piece], None] | None = journal.add if journal is not None else None

    async def go_on(self, exchange: Exchange, broken: Attempt, error: SlipstreamError) -> bool:
        """Lets `exchange` go on after `error` ended the attempt `broken`; False where it cannot."""
        cause = cause_of(error)
        is_free = not exchange.resumed and _took_its_work_along(error)
        result = await self._resume(exchange, broken, cause, is_free=is_free)
        self._failover.count(exchange.pair, broken.decision.request_class, cause, result)
        exchange.resumption(cause, result)
        if result is not Result.RESUMED:
            _log.warning("%s: a stream broke off and does not go on: %s", broken.replica.name, result)
        return result is Result.RESUMED

    def close(self) -> None:
        """Lets go of what it went on with."""
        while self._entered:
            self._failover.fleet.leave(self._entered.pop())

    async def _resume(self, exchange: Exchange, broken: Attempt, cause: str, *, is_free: bool) -> Result:
        committed = self._journal.committed(exchange.usage) if self._journal is not None else None
        if committed is None:
            return Result.NOT_RESUMABLE
        committed = msgspec.structs.replace(committed, resumed=(*exchange.resumed, cause))
        if len(exchange.resumed) >= MAX_RESUMPTIONS:
            return Result.TOO_OFTEN
        loop = asyncio.get_running_loop()
        end_s, pause_s = loop.time() + self._failover.deadlines.resume_s, _FIRST_PAUSE_S
        while True:
            result = await self._round(exchange, broken, committed, is_free=is_free)
            is_free = False
            if result is None:
                continue
            if result in _FINAL or loop.time() + pause_s > end_s:
                return result
            with exchange.watchdog.waiting(self._failover.deadlines.resume_s, "a server to go on at"):
                await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _round(
        self, exchange: Exchange, broken: Attempt, committed: Committed, *, is_free: bool
    ) -> Result | None:
        """Tries each server once, as far as the budget goes. None: others serve it since an attempt began, so that who
        is next in this round may be a server that was taken away."""
        served = self._served_now()
        if served is not self._served:
            self._entered.append(self._failover.fleet.enter())
        for leg, replica in next_attempts(served, broken.decision, self._request, broken.replica, self._is_killed_now):
            if leg.backend.protocol is not broken.backend.protocol:
                continue  # what is noted of the answer tells it nothing, and the client would get two forms of chunks
            if self._served_now() is not served:
                return None
            if not is_free and not self._failover.retries.allow():
                return Result.NO_BUDGET
            is_free = False
            exchange.attempt(leg, replica, self._failover.lookout(served, leg, replica))
            try:
                exchange.reopened(await self._open(leg, replica, committed))
            except (UpstreamError, Overloaded) as exc:
                exchange.attempt_failed(exc)
            except RequestError as exc:  # no other server would take it either
                exchange.attempt_failed(exc)
                return Result.NOT_RESUMABLE
            else:
                return Result.RESUMED
        return Result.NO_SERVER

    def _served_now(self) -> ServedRoute:
        """The route as it is served by now, where that is the same target still: servers come and go while long answers
        run. Else the one that the stream began with."""
        served = self._failover.fleet.current.routes.get(self._served.route.model)
        if served is None or not same_target(self._served.route, served.route):
            return self._served
        return served

    def _is_killed_now(self) -> bool:
        return self._served.route.pair.metadata.key in self._failover.fleet.current.killed


def _took_its_work_along(error: SlipstreamError) -> bool:
    """Whether the server that failed with `error` is rid of the work, so that whoever goes on with it adds nothing. One
    that is slow, or has too much to do, is not: where all are, going on elsewhere has to be paid for, or it would keep
    them busy with nothing else."""
    return isinstance(error, UpstreamHalted) or not isinstance(error, UpstreamTimeout | Overloaded)
