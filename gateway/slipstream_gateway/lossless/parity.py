"""Parity: a share of the speculative answers is decoded again plainly, and compared.

Speculation must not change an answer: greedy answers must be equal, and sampled ones where the servers promise equal
answers for equal seeds. Elsewhere it must not change the distribution of sampled answers, which the plain arm's scores
of both answers show over time (`lossless.score`).

Replays run after the end of their request, one at a time. The class whose last replay is the oldest is first, whether
that replay had a result or not. A replay begins on a spare server of the plain arm. If no replay could begin for a
while, the next one begins on a busy server (`ReplayTurns`). While it runs, a replay counts in its server's load. It has
no other effect: it is no outcome, and neither estimates nor the server's health use it. The result of a replay is
counted, and recorded for the guards of the speculative arm.

A tenth of the answers of a new revision with the same target is compared with plain answers of the serving revision.
These replays never wait for a spare server. Otherwise a busy service could promote a revision with wrong tokens.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence

import msgspec
from slipstream_core.errors import Incomparable, SlipstreamError
from slipstream_core.observation import ParityResult
from slipstream_core.tasks import cancel

from slipstream_gateway.admission import Admission
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.lossless.answers import first_difference, read_answer
from slipstream_gateway.lossless.findings import Result
from slipstream_gateway.lossless.replay import replay, report, scored_pair
from slipstream_gateway.lossless.schedule import RESERVED_AFTER_S, ReplayTurns, SpareServers
from slipstream_gateway.lossless.traffic import Candidate, Key, TrafficSamples
from slipstream_gateway.lossless.withhold import Distrust, SampledTests
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.upstreams.pool import Replica

MAX_QUEUED = 32
MAX_QUEUED_BYTES = 16 * 1024 * 1024
MAX_AGE_S = 300.0
FRESH_S = 900.0

_log = logging.getLogger(__name__)


class ParityCount(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one pair's and class's answers that were drawn for a comparison.

    `dropped` is by cause: `queue_full`, `too_large`, `stale` (too old, or the manifest has changed), `failed` (the
    plain arm gave no answer), `unreadable`, `unscored`. `age_s` is the time since the last comparison, None before the
    first. `result` is that of the comparisons within `FRESH_S`: `NO_DATA` if there was none. `evidence` is that against
    the answers that are compared by their scores, in nats, None without one; the alarm is at `ALARM_AT`.
    """

    pair: str
    request_class: str
    checked: int
    mismatched: int
    dropped: dict[str, int]
    age_s: float | None = None
    result: Result = Result.NO_DATA
    evidence: float | None = None


class _Tally:
    """Times are by `time.monotonic`. `replayed_s` is that of the last replay, also of one without a result."""

    def __init__(self) -> None:
        self.checked = self.mismatched = 0
        self.checked_s = self.mismatched_s = self.replayed_s = -math.inf
        self.dropped: Counter[str] = Counter()

    def add(self, *, matched: bool) -> None:
        self.checked += 1
        self.checked_s = time.monotonic()
        if not matched:
            self.mismatched += 1
            self.mismatched_s = self.checked_s

    def count(self, key: Key, evidence: float | None) -> ParityCount:
        age_s, mismatch_age_s = (time.monotonic() - then_s for then_s in (self.checked_s, self.mismatched_s))
        result = Result.FAIL if mismatch_age_s <= FRESH_S else Result.PASS
        return ParityCount(
            pair=key[0],
            request_class=key[1],
            checked=self.checked,
            mismatched=self.mismatched,
            dropped=dict(self.dropped),
            age_s=age_s if self.checked else None,
            result=result if age_s <= FRESH_S else Result.NO_DATA,
            evidence=evidence,
        )


class Parity:
    """Replays the answers of `samples`. Its task exists only while candidates wait; `aclose` ends it at once.

    A server is spare if it has at most `max_outstanding` requests in flight, at two looks `look_s` apart. `distrust` is
    called if sampled answers of a pair do not have the target's distribution. `deaths` stops replays that break
    servers.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        admission: Admission,
        deaths: QueriesOfDeath,
        distrust: Distrust,
        look_s: float = 0.25,
        max_outstanding: int = 0,
        replay_timeout_s: float = 120.0,
        max_queued: int = MAX_QUEUED,
        reserved_after_s: float = RESERVED_AFTER_S,
    ) -> None:
        self._fleet = fleet
        self._deaths = deaths
        self._look_s = look_s
        self._replay_timeout_s = replay_timeout_s
        self._max_queued = max_queued
        self._spare = SpareServers(admission, max_outstanding=max_outstanding)
        self._turns = ReplayTurns(reserved_after_s)
        self._queue: list[Candidate] = []
        self.samples = TrafficSamples(self.enqueue, self._drop)
        self._sampled = SampledTests(distrust)
        self._tallies: dict[Key, _Tally] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def counts(self) -> list[ParityCount]:
        """The counts so far. May be called from any thread."""
        return [tally.count(key, self._sampled.evidence(key)) for key, tally in list(self._tallies.items())]

    async def aclose(self) -> None:
        """Drops the waiting candidates and cancels the running replay."""
        self._closed = True
        self._queue.clear()
        await cancel(self._task)

    def enqueue(self, candidate: Candidate) -> None:
        """Queues an answer for its replay. A full queue drops the oldest answer of the class with the most answers."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        candidate.since_s = loop.time()
        self._queue.append(candidate)
        while len(self._queue) > self._max_queued or sum(c.size_bytes for c in self._queue) > MAX_QUEUED_BYTES:
            [(most, _)] = Counter(one.key for one in self._queue).most_common(1)
            self._remove(next(one for one in self._queue if one.key == most), "queue_full")
        if self._task is None or self._task.done():
            self._turns.ended(loop.time())
            self._task = loop.create_task(self._work())

    def _remove(self, candidate: Candidate, cause: str) -> None:
        self._queue.remove(candidate)
        self._miss(candidate, cause)

    async def _work(self) -> None:
        """Starts replays until no candidate waits."""
        loop = asyncio.get_running_loop()
        while self._queue:
            await asyncio.sleep(self._look_s)
            self._drop_stale(loop.time())
            start = self._startable(loop.time())
            if start is None:
                continue
            candidate, replica = start
            self._queue.remove(candidate)
            self._spare.forget()
            try:
                await self._check(candidate, replica)
            except Exception:  # the task's top: a failed comparison must not end the others
                _log.exception("a parity check of %s failed", candidate.key[0])
                self._miss(candidate, "failed")
            self._tally(candidate.key).replayed_s = time.monotonic()
            self._turns.ended(loop.time())

    def _drop_stale(self, now_s: float) -> None:
        for candidate in list(self._queue):
            if self._served_now(candidate) is None:  # its comparison would mean nothing any more
                self._queue.remove(candidate)
                self._drop(candidate.key, "stale")
            elif candidate.since_s < now_s - MAX_AGE_S:
                self._remove(candidate, "stale")

    def _startable(self, now_s: float) -> tuple[Candidate, Replica] | None:
        """The next candidate with its server."""
        waiting = sorted(self._queue, key=lambda candidate: self._tally(candidate.key).replayed_s)
        spare = self._spare.look({replica for candidate in waiting for replica in self._replicas(candidate)})
        for candidate in waiting:
            replicas = self._replicas(candidate)
            if not candidate.of_new_revision and not self._turns.is_due(now_s, spare=False):
                replicas = [replica for replica in replicas if replica in spare]
            if replicas:
                return candidate, min(replicas, key=lambda replica: replica.outstanding)
        return None

    def _served_now(self, candidate: Candidate) -> ServedRoute | None:
        """The candidate's route as served now. None: the route has changed, and with it perhaps its answers."""
        route = candidate.served.route
        served = self._fleet.current.by_name.get(route.model)
        known = () if served is None else (served, served.canary)
        return next((one for one in known if one is not None and one.route.generation == route.generation), None)

    def _replicas(self, candidate: Candidate) -> Sequence[Replica]:
        """The servers of the candidate's plain arm."""
        served = self._served_now(candidate)
        if served is None:
            return ()
        lacking = served.plain.lacking(served.adapter)
        return [replica for replica in served.plain.replicas if not replica.ejected and replica not in lacking]

    async def _check(self, candidate: Candidate, replica: Replica) -> None:
        pair, request = candidate.served.route.key, candidate.request
        snapshot = self._fleet.enter()
        replica.acquire(0, time.perf_counter())
        try:
            self._deaths.check(pair, request)
            async with asyncio.timeout(self._replay_timeout_s):
                matched = await self._compared(candidate, replica)
            if not candidate.of_new_revision:  # which is no evidence on speculation
                self._tally(candidate.key).add(matched=matched)
            candidate.recording()(ParityResult.MATCH if matched else ParityResult.MISMATCH)
        except Incomparable as exc:
            self._drop(candidate.key, exc.cause)
        except (SlipstreamError, TimeoutError) as exc:
            _log.info("%s: a parity replay failed: %s", replica.name, type(exc).__name__)
            if isinstance(exc, SlipstreamError):
                self._deaths.failed(pair, request, replica, exc)
            self._miss(candidate, "failed")
        finally:
            replica.release(0, time.perf_counter())
            self._fleet.leave(snapshot)

    async def _compared(self, candidate: Candidate, replica: Replica) -> bool:
        """Whether the answer is one of plain decoding, as far as its replay on `replica` shows."""
        speculative = await read_answer(candidate.pieces, stream=candidate.request.stream)
        if candidate.by_scores:
            return not self._sampled.judge(candidate, await scored_pair(candidate, speculative, replica))
        plain = await replay(candidate, replica)
        difference = first_difference(speculative, plain)
        if difference is not None:
            report(candidate, difference, speculative, plain)
        return difference is None

    def _miss(self, candidate: Candidate, cause: str) -> None:
        """Drops an answer that could have been compared. The guards hear of it: without comparisons, nothing shows
        that answers are right."""
        self._drop(candidate.key, cause)
        candidate.recording()(ParityResult.MISSED)

    def _drop(self, key: Key, cause: str) -> None:
        self._tally(key).dropped[cause] += 1

    def _tally(self, key: Key) -> _Tally:
        return self._tallies.setdefault(key, _Tally())
