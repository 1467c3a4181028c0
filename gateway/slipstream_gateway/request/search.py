"""The servers of a call: before its first byte, and for the resumption of a stream that broke off.

The answer is the same as without the interruption (see `journal.journal_of` for the streams that can resume), and its
usage counts once. A stream searches for a server for some seconds, because many streams search at the same time after a
server failed. The number of resumptions per stream is limited: a stream that breaks more often may be the cause of the
failures.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

import msgspec
from slipstream_core.errors import (
    Overloaded,
    SlipstreamError,
    StreamInterrupted,
    UpstreamHalted,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from slipstream_core.settings import Deadlines

from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.request.call import Call
from slipstream_gateway.request.candidates import Candidate, Plan, Result, Sent, Tried, next_candidate
from slipstream_gateway.request.causes import cause_of
from slipstream_gateway.request.journal import same_target
from slipstream_gateway.request.retry_budget import RetryBudget

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


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


class _Break(NamedTuple):
    """A stream of `candidate` broke off with `failure`, after `resumed` resumptions."""

    candidate: Candidate
    failure: SlipstreamError
    cause: str
    resumed: int


class Search:
    """The search of one call for its servers, one after another: `next` before each attempt, and `close` at the end."""

    def __init__(self, shared: Resumptions, call: Call, plan: Plan) -> None:
        self._shared = shared
        self._call = call
        self._plan = plan
        self._tried: list[Tried] = []
        self._last: Candidate | None = None
        self._break: _Break | None = None
        self._is_free = False
        self._end_s = self._pause_s = 0.0  # of the present resumption
        self._entered: list[Snapshot] = []

    async def next(self) -> Candidate:
        """The next server. Raises the error of the call if no server is left."""
        call, last, known = self._call, self._last, self._break
        if last is not None and call.failure is not None:
            if call.has_begun and (known is None or len(call.resumed) > known.resumed):
                self._break = known = self._interrupted(last, call.failure)
            else:
                self._tried.append(Tried.of(last, call.failure))
        self._last = found = self._before_begin() if known is None else await self._after_break(known)
        return found

    def close(self) -> None:
        """Releases the snapshots whose servers were used."""
        while self._entered:
            self._shared.fleet.leave(self._entered.pop())

    def _next(self) -> Candidate | Result:
        call, known = self._call, self._break
        sent = Sent(
            tried=self._tried,
            broken=None if known is None else known.candidate,
            runs=call.runs,
            resumed=len(call.resumed),
            is_resumable=call.committed is not None,
            is_carried=call.context.carrier is not None,
            is_over=call.timer.over,
            is_killed=self._shared.is_killed(call.pair),
        )
        return next_candidate(self._plan, sent, call.failure)

    def _before_begin(self) -> Candidate:
        call, retries = self._call, self._shared.retries
        found = self._next()
        if isinstance(found, Result) or not (call.failure is None or self._is_free or retries.allow()):
            raise _last_error(call, self._plan.served)
        # The share of a new revision bounds the number of retries after it.
        self._is_free = bool(found.decision.revision) and not retries.is_none
        if not found.decision.revision and call.observation is not None and call.observation.canary:
            call.observation = msgspec.structs.replace(call.observation, revision="", canary=False)
        return found

    def _interrupted(self, broken: Candidate, failure: SlipstreamError) -> _Break:
        """Begins a resumption. Raises `failure` if the time of the call is over: an answer that takes longer would take
        as long on another server."""
        call = self._call
        if call.timer.over:
            raise failure
        cause, resumed = cause_of(failure), len(call.resumed)
        self._is_free = not resumed and _freed_its_work(failure) and not self._shared.retries.is_none
        self._tried, self._plan = [], Plan(broken.served, broken.decision, call.request)
        call.committed = call.journal.committed(call.usage) if call.journal is not None else None
        if call.committed is not None:
            call.committed = msgspec.structs.replace(call.committed, resumed=(*call.resumed, cause))
        self._end_s = asyncio.get_running_loop().time() + self._shared.deadlines.resume_s
        self._pause_s = _FIRST_PAUSE_S
        return _Break(broken, failure, cause, resumed)

    async def _after_break(self, known: _Break) -> Candidate:
        """The next server for the stream, in rounds over the servers with pauses between them. Raises
        `StreamInterrupted` if there is none."""
        loop, resume_s = asyncio.get_running_loop(), self._shared.deadlines.resume_s
        while True:
            self._change_servers()
            found = self._affordable()
            if isinstance(found, Candidate):
                return found
            is_final = found not in (Result.NO_SERVER, Result.NO_BUDGET)
            if is_final or loop.time() + self._pause_s > self._end_s:
                break
            with self._call.timer.waiting(resume_s, "a server to resume on"):
                await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._tried = []
        self._shared.ended(self._call, known.cause, found)
        _log.warning("%s: a stream broke off and does not resume: %s", known.candidate.replica.name, found)
        raise StreamInterrupted(known.failure) from known.failure

    def _affordable(self) -> Candidate | Result:
        """The next server of a round that can continue the answer, as far as the retry budget permits."""
        while isinstance(found := self._next(), Candidate) and not _continues(found, self._call):
            self._tried.append(Tried(found))
        is_free, self._is_free = self._is_free, False
        if isinstance(found, Candidate) and not is_free and not self._shared.retries.allow():
            return Result.NO_BUDGET
        return found

    def _change_servers(self) -> None:
        """Begins a round with the servers of the route as served now, because they change while long answers run. A
        route with another target is none to change to."""
        fleet, served = self._shared.fleet, self._plan.served
        now = fleet.current.by_name.get(served.route.model)
        if now is not None and now is not served and same_target(served.route, now.route):
            self._entered.append(fleet.enter())
            self._plan, self._tried = msgspec.structs.replace(self._plan, served=now), []


def _continues(candidate: Candidate, call: Call) -> bool:
    """Whether the server continues the committed part of the answer, by what is known of it."""
    committed = call.committed
    if committed is None or committed.text or not committed.token_ids:
        return True
    return candidate.replica.upstream.drafting.continues(call.request)


def _freed_its_work(failure: SlipstreamError) -> bool:
    """Whether the failed server has stopped its work for the stream, so that resuming adds no load. A slow or
    overloaded server still does this work: if all servers are slow, the retry budget must limit resumptions."""
    return isinstance(failure, UpstreamHalted) or not isinstance(failure, UpstreamTimeout | Overloaded)


def _last_error(call: Call, served: ServedRoute) -> SlipstreamError:
    """The error of a call for which no server gave a first byte."""
    failure = call.failure
    if failure is not None and not isinstance(failure, UpstreamUnavailable):
        return failure
    is_lacking = len(served.plain.lacking(served.adapter)) == len(served.plain.replicas) > 0
    message = "No server has loaded the adapter '{}'." if is_lacking else "No server for the model '{}' is up."
    error = UpstreamUnavailable(
        message.format(call.request.model), retry_after_s=max(served.plain.retry_after_s(), 1.0)
    )
    error.__cause__ = failure
    return error
