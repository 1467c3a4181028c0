"""Parity: a share of the speculative answers is decoded again plainly, and compared.

Speculation must not change an answer: greedy answers must be equal, and sampled ones where the servers promise equal
answers for equal seeds. Elsewhere it must not change the distribution of sampled answers, which the plain arm's scores
of both answers show over time (`parity.score`).

Replays run after the end of their request, one at a time. A replay needs a server of the plain arm to which this
gateway sent no requests at two consecutive looks, while no request waited for a place. As soon as that server gets a
request, or a request waits, the replay is cancelled and tried again later, a few times. A replay that cannot run in
time is dropped and counted. While it runs, a replay counts in its server's load. It has no other effect: it is no
outcome, and neither estimates nor the server's health use it. The result of a replay is counted, and recorded for the
guards of the speculative arm.

A tenth of the answers of a new revision with the same target is compared with plain answers of the serving revision.
These replays run on busy servers, too, and are not cancelled. Otherwise a busy service could promote a revision with
wrong tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import TypeVar

import msgspec
from slipstream_core.errors import Incomparable, SlipstreamError
from slipstream_core.types import Capability

from slipstream_gateway.admission import Admission
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.parity.comparison import Answer, Collector, WatchedStream, first_difference
from slipstream_gateway.request.parity.replay import (
    Candidate,
    replay,
    report,
    tell,
)
from slipstream_gateway.request.parity.sampled import Distrust, SampledEvidence, SampledTests, scored_pair
from slipstream_gateway.request.parity.score import ScoredPair
from slipstream_gateway.upstreams.base import Completion, Stream
from slipstream_gateway.upstreams.pool import Replica

MAX_QUEUED = 32
MAX_QUEUED_BYTES = 16 * 1024 * 1024
MAX_WATCHED = 64
MAX_REQUEST_BYTES = 1024 * 1024
MAX_ATTEMPTS = 4
MAX_AGE_S = 300.0
_POLL_S = 0.01
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class ParityCount(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one pair's and class's answers that were drawn for a comparison.

    `dropped` is by cause: `queue_full`, `too_large`, `stale` (too old, or the manifest has changed), `gave_way`,
    `failed` (the plain arm gave no answer), `unreadable`.
    """

    pair: str
    request_class: str
    checked: int
    mismatched: int
    dropped: dict[str, int]


class _Tally:
    def __init__(self) -> None:
        self.checked = 0
        self.mismatched = 0
        self.dropped: dict[str, int] = {}


class Parity:
    """Collects answers and replays them. Its task exists only while candidates wait; `aclose` ends it at once.

    A server is spare if it has at most `max_outstanding` requests in flight, at two looks `look_s` apart. `distrust` is
    called if sampled answers of a pair do not have the target's distribution.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        admission: Admission,
        look_s: float = 0.25,
        max_outstanding: int = 0,
        replay_timeout_s: float = 120.0,
        max_queued: int = MAX_QUEUED,
        distrust: Distrust | None = None,
    ) -> None:
        self._fleet = fleet
        self._admission = admission
        self._look_s = look_s
        self._max_outstanding = max_outstanding
        self._replay_timeout_s = replay_timeout_s
        self._max_queued = max_queued
        self._queue: deque[Candidate] = deque()
        self._watched = 0
        self._sampled = SampledTests(distrust or _keep_quiet)
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def take(self, candidate: Candidate, answer: Completion) -> None:
        """Queues a whole answer."""
        if self._is_too_large(candidate):
            return
        try:
            for piece in answer.pieces:
                candidate.answer.add(piece)
        except Incomparable as exc:
            self._drop(candidate, exc.cause)
            return
        self._enqueue(candidate)

    def watch(self, candidate: Candidate, answer: Stream) -> Stream:
        """The stream to read in place of `answer`. It also stores a copy, and queues it at its end."""
        if self._is_too_large(candidate):
            return answer
        if self._watched >= MAX_WATCHED:
            self._drop(candidate, "queue_full")
            return answer
        self._watched += 1
        return WatchedStream(
            answer,
            on_end=lambda collector: self._ended(candidate, collector),
            on_lost=lambda error: self._lost(candidate, error),
        )

    def counts(self) -> list[ParityCount]:
        """The counts so far. May be called from any thread."""
        return [
            ParityCount(
                pair=pair,
                request_class=request_class,
                checked=tally.checked,
                mismatched=tally.mismatched,
                dropped=dict(tally.dropped),
            )
            for (pair, request_class), tally in list(self._tallies.items())
        ]

    def evidence(self) -> list[SampledEvidence]:
        """The state of the tests of scored answers. May be called from any thread."""
        return self._sampled.evidence()

    async def aclose(self) -> None:
        """Drops the waiting candidates and cancels the running replay."""
        self._closed = True
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # Collection of answers.

    def _is_too_large(self, candidate: Candidate) -> bool:
        """Whether the request is too large to be kept, which is counted."""
        if len(candidate.job.request.raw) <= MAX_REQUEST_BYTES:
            return False
        self._drop(candidate, "too_large")
        return True

    def _ended(self, candidate: Candidate, collector: Collector) -> None:
        self._watched -= 1
        candidate.answer = collector
        self._enqueue(candidate)

    def _lost(self, candidate: Candidate, error: Incomparable | None) -> None:
        """The answer is too large, which is counted. Or it did not reach its end, which is not counted."""
        self._watched -= 1
        if error is not None:
            self._drop(candidate, error.cause)

    def _enqueue(self, candidate: Candidate) -> None:
        if self._closed:
            return
        candidate.since_s = asyncio.get_running_loop().time()
        self._queue.append(candidate)
        while len(self._queue) > self._max_queued or sum(c.size_bytes for c in self._queue) > MAX_QUEUED_BYTES:
            self._drop(self._queue.popleft(), "queue_full")
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    # Replays.

    async def _work(self) -> None:
        """Looks for spare servers until no candidate waits."""
        spare_before: set[Replica] = set()
        while self._queue:
            await asyncio.sleep(self._look_s)
            self._drop_stale()
            start = self._startable(spare_before)
            if start is None:
                spare_before = {replica for candidate in self._queue for replica in self._spare(candidate)}
                continue
            candidate, replica = start
            self._queue.remove(candidate)
            spare_before = set()
            try:
                await self._check(candidate, replica)
            except Exception:  # the task's top: a failed comparison must not end the others
                _log.exception("a parity check of %s failed", candidate.key[0])
                self._drop(candidate, "failed")

    def _drop_stale(self) -> None:
        oldest_s = asyncio.get_running_loop().time() - MAX_AGE_S
        for candidate in list(self._queue):
            if candidate.since_s < oldest_s or self._served_now(candidate) is None:
                self._queue.remove(candidate)
                self._drop(candidate, "stale")

    def _startable(self, spare_before: set[Replica]) -> tuple[Candidate, Replica] | None:
        for candidate in self._queue:
            for replica in self._spare(candidate):
                if replica in spare_before or candidate.of_new_revision:
                    return candidate, replica
        return None

    def _served_now(self, candidate: Candidate) -> ServedRoute | None:
        """The candidate's route as served now. None: the route has changed, and with it perhaps its answers."""
        route = candidate.served.route
        served = self._fleet.current.by_name.get(route.model)
        known = () if served is None else (served, served.canary)
        return next((one for one in known if one is not None and one.route.generation == route.generation), None)

    def _spare(self, candidate: Candidate) -> Iterator[Replica]:
        """The servers of the candidate's plain arm that have no other work."""
        served = self._served_now(candidate)
        if served is None:
            return
        if candidate.of_new_revision and (least := served.plain.least_busy(adapter=served.adapter)) is not None:
            yield least
        if self._admission.queued:
            return
        for replica in served.plain.replicas:
            if replica.ejected or replica in served.plain.lacking(served.adapter):
                continue
            if replica.outstanding <= self._max_outstanding:
                yield replica

    async def _check(self, candidate: Candidate, replica: Replica) -> None:
        snapshot = self._fleet.enter()
        replica.acquire(0, time.perf_counter())
        candidate.attempts += 1
        try:
            async with asyncio.timeout(self._replay_timeout_s):
                answer = await candidate.answer.read()
                if candidate.by_scores:
                    await self._check_scores(candidate, answer, replica)
                else:
                    await self._check_equality(candidate, answer, replica)
        except Incomparable as exc:
            self._drop(candidate, exc.cause)
        except (SlipstreamError, TimeoutError) as exc:
            _log.info("%s: a parity replay failed: %s", replica.name, type(exc).__name__)
            self._drop(candidate, "failed")
        finally:
            replica.release(0, time.perf_counter())
            self._fleet.leave(snapshot)

    async def _check_equality(self, candidate: Candidate, speculative: Answer, replica: Replica) -> None:
        running = replay(candidate, replica)
        plain = await running if candidate.of_new_revision else await self._giving_way(running, replica)
        if plain is None:
            self._try_again(candidate)
            return
        difference = first_difference(speculative, plain)
        self._judged(candidate, matched=difference is None)
        if difference is not None:
            report(candidate, difference, speculative, plain)

    async def _check_scores(self, candidate: Candidate, speculative: Answer, replica: Replica) -> None:
        async def compared() -> tuple[ScoredPair | None]:
            return (await scored_pair(candidate, speculative, replica),)

        found = await self._giving_way(compared(), replica)
        if found is None:
            self._try_again(candidate)
        else:
            self._judged(candidate, matched=not self._sampled.judge(candidate, found[0]))

    async def _giving_way(self, running: Coroutine[None, None, _T], replica: Replica) -> _T | None:
        """The result of `running`. None: it was cancelled because another request needs the server or a place."""
        task = asyncio.get_running_loop().create_task(running)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_POLL_S)
                if not task.done() and (self._admission.queued or replica.outstanding > self._max_outstanding + 1):
                    return None
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _try_again(self, candidate: Candidate) -> None:
        if candidate.attempts < MAX_ATTEMPTS:
            self._queue.appendleft(candidate)
        else:
            self._drop(candidate, "gave_way")

    def _judged(self, candidate: Candidate, *, matched: bool) -> None:
        if candidate.of_new_revision:  # says nothing about speculation
            tell(candidate, matched=matched)
            return
        tally = self._tally(candidate)
        tally.checked += 1
        tally.mismatched += not matched
        tell(candidate, matched=matched)

    def _drop(self, candidate: Candidate, cause: str) -> None:
        dropped = self._tally(candidate).dropped
        dropped[cause] = dropped.get(cause, 0) + 1

    def _tally(self, candidate: Candidate) -> _Tally:
        return self._tallies.setdefault(candidate.key, _Tally())


def _keep_quiet(pair: str, capability: Capability, detail: str) -> None:
    """The default for `distrust`, without effect: alarms are only logged and counted."""
