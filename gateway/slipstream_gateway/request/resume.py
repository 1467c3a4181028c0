"""Resumption of streams that broke off: on another server, after the part that the client has.

The answer is the same as without the interruption (see `journal.journal_of` for the streams that can resume), and its
usage counts once. A stream searches for a server for some seconds, because many streams search at the same time after a
server failed. The number of resumptions per stream is limited: a stream that breaks more often may be the cause of the
failures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from enum import StrEnum

import msgspec
from slipstream_core.errors import (
    Overloaded,
    RequestError,
    SlipstreamError,
    StreamInterrupted,
    UpstreamHalted,
    UpstreamTimeout,
)
from slipstream_core.settings import Deadlines

from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.request.call import Call
from slipstream_gateway.request.candidates import Candidate, resume_candidates
from slipstream_gateway.request.causes import cause_of
from slipstream_gateway.request.journal import same_target
from slipstream_gateway.request.retry_budget import RetryBudget

MAX_RESUMPTIONS = 3
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


class Result(StrEnum):
    """The result of a resumption. `NOT_RESUMABLE`: because of the request, its server or the policy."""

    RESUMED = "resumed"
    NOT_RESUMABLE = "not_resumable"
    NO_SERVER = "no_server"
    NO_BUDGET = "no_budget"
    TOO_OFTEN = "too_often"


class ResumptionCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of streams of one pair and class that broke off after their first byte, by cause and result.

    `cause`: `upstream_unavailable`, `upstream_failed`, `upstream_timeout`, or `stalled`.
    """

    pair: str
    request_class: str
    cause: str
    result: Result
    count: int


class Resumptions:
    """The shared state of the resumptions of all streams, and their counts."""

    def __init__(self, *, fleet: Fleet, retries: RetryBudget, deadlines: Deadlines) -> None:
        self.fleet = fleet
        self.retries = retries
        self.deadlines = deadlines
        self._counts: dict[tuple[str, str, str, Result], int] = {}

    def counts(self) -> list[ResumptionCount]:
        """All counts so far, for metrics."""
        return [
            ResumptionCount(pair=pair, request_class=request_class, cause=cause, result=result, count=count)
            for (pair, request_class, cause, result), count in list(self._counts.items())
        ]

    async def candidates(self, call: Call, served: ServedRoute, broken: Candidate) -> AsyncGenerator[Candidate, None]:
        """Yields servers for the stream of `call` after `broken` interrupted it, until one of them has resumed it.
        Raises `StreamInterrupted` if none does."""
        failure = call.failure
        if failure is None:
            raise RuntimeError("no attempt has failed")
        if call.timer.over:  # an answer that takes longer than the total would take as long on another server
            raise failure
        cause, resumed = cause_of(failure), len(call.resumed)
        search = _Search(self, call, served, broken, is_free=not resumed and _freed_its_work(failure))
        committed = call.journal.committed(call.usage) if call.journal is not None else None
        if committed is None:
            search.result = Result.NOT_RESUMABLE
        elif resumed >= MAX_RESUMPTIONS:
            search.result = Result.TOO_OFTEN
        else:
            call.committed = msgspec.structs.replace(committed, resumed=(*call.resumed, cause))
            try:
                async with aclosing(search.candidates()) as candidates:
                    async for candidate in candidates:
                        yield candidate
                        if len(call.resumed) > resumed:
                            return  # the stream resumed, and broke off again
                        if isinstance(call.failure, RequestError):  # no other server would accept the request either
                            search.result = Result.NOT_RESUMABLE
                            break
            finally:
                search.close()
        self.ended(call, cause, search.result)
        _log.warning("%s: a stream broke off and does not resume: %s", broken.replica.name, search.result)
        raise StreamInterrupted(failure) from failure

    def is_killed(self, pair: str) -> bool:
        """Whether a kill switch of the pair is on now, whatever snapshot the call uses."""
        return pair in self.fleet.current.killed

    def resumed(self, call: Call) -> None:
        """Records that a server opened the continuation of the stream."""
        if call.committed is not None:
            self.ended(call, call.committed.resumed[-1], Result.RESUMED)

    def ended(self, call: Call, cause: str, result: Result) -> None:
        """Counts the end of one resumption, and records it in the call's span."""
        request_class = call.decision.request_class if call.decision is not None else ""
        key = (call.pair, request_class, cause, result)
        self._counts[key] = self._counts.get(key, 0) + 1
        if result is Result.RESUMED:
            call.resumed += (cause,)
        if call.span is not None:
            call.span.broke_off(cause=cause, result=result, output_tokens=call.usage.output_tokens)


class _Search:
    """Rounds over the servers that could resume one stream, with pauses between the rounds."""

    def __init__(
        self, shared: Resumptions, call: Call, served: ServedRoute, broken: Candidate, *, is_free: bool
    ) -> None:
        self.result = Result.NO_SERVER
        self._shared = shared
        self._call = call
        self._served = served
        self._broken = broken
        self._is_free = is_free
        self._entered: list[Snapshot] = []

    async def candidates(self) -> AsyncGenerator[Candidate, None]:
        """Yields each server once per round, as far as the retry budget permits."""
        loop, resume_s = asyncio.get_running_loop(), self._shared.deadlines.resume_s
        end_s, pause_s = loop.time() + resume_s, _FIRST_PAUSE_S
        while True:
            served = self._served_now()
            if served is not self._served:
                self._entered.append(self._shared.fleet.enter())
            self.result = Result.NO_SERVER
            for candidate in self._affordable(served):
                yield candidate
                if self._served_now() is not served:
                    break  # the next server of this round may be gone
            else:
                if loop.time() + pause_s > end_s:
                    return
                with self._call.timer.waiting(resume_s, "a server to resume on"):
                    await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._is_free = False

    def _affordable(self, served: ServedRoute) -> Iterator[Candidate]:
        """The candidates of one round that the retry budget permits."""
        broken, request = self._broken, self._call.request
        for candidate in resume_candidates(served, broken.decision, request, broken.replica, self._is_killed_now):
            if candidate.backend.protocol is not broken.backend.protocol:
                continue  # it cannot use the journal, and the client would get chunks of two forms
            if not self._is_free and not self._shared.retries.allow():
                self.result = Result.NO_BUDGET
                return
            self._is_free = False
            yield candidate

    def _served_now(self) -> ServedRoute:
        """The route as served now if it has the same target, because servers change while long answers run. Otherwise
        the route with which the stream began."""
        served = self._shared.fleet.current.by_name.get(self._served.route.model)
        if served is None or not same_target(self._served.route, served.route):
            return self._served
        return served

    def _is_killed_now(self) -> bool:
        return self._shared.is_killed(self._call.pair)

    def close(self) -> None:
        """Releases the snapshots whose servers were used."""
        while self._entered:
            self._shared.fleet.leave(self._entered.pop())


def _freed_its_work(failure: SlipstreamError) -> bool:
    """Whether the failed server has stopped its work for the stream, so that resuming adds no load. A slow or
    overloaded server still does this work: if all servers are slow, the retry budget must limit resumptions."""
    return isinstance(failure, UpstreamHalted) or not isinstance(failure, UpstreamTimeout | Overloaded)
