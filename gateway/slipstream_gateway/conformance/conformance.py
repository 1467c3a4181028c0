"""Checks every server of a speculative arm: when it appears, after it could not be reached, and on a schedule.

A server that nobody checked yet is checked at once. A repeated check waits until the server is spare, as replays of
parity do, and starts at a random moment of its interval, so that servers are not all checked together. Between checks
the server is probed: one that restarts does not answer for a while, and counts as another server afterwards.

Decoding plainly never waits for a check. Each worker checks for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import msgspec

from slipstream_gateway.conformance.checking import Check, Side
from slipstream_gateway.conformance.verdict import Finding, Result, Subject
from slipstream_gateway.conformance.watch import Watch
from slipstream_gateway.director.admission import Admission
from slipstream_gateway.director.fleet import Fleet, ServedRoute, Snapshot
from slipstream_gateway.errors import Overloaded, SlipstreamError, UpstreamError
from slipstream_gateway.manifest.table import Backend
from slipstream_gateway.settings import ConformanceSettings
from slipstream_gateway.types import Capability
from slipstream_gateway.upstreams.pool import Replica

_SHORTEST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0
_LOOK_S = 0.5
_PROBE_TIMEOUT_S = 5.0
_JITTER = 0.25
_SEED_BITS = 31
_log = logging.getLogger(__name__)


class CheckCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many checks of a pair's servers came out so."""

    pair: str
    subject: Subject
    result: Result
    count: int


class ReplicaConformance(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a speculative arm. `index` is its place in the arm's pool. `withheld` maps the capabilities that it
    may not use to the reason codes. `checked_s` is the wall clock's time of the last verdict, None before the first."""

    pair: str
    index: int
    server: str
    withheld: dict[Capability, str]
    findings: list[Finding]
    checked_s: float | None


class _Terms(NamedTuple):
    """What a verdict belongs to: when any of it changes, the server is checked anew."""

    speculative: Backend
    plain: Backend
    draft_length: int


class Conformance:
    """The checks of all servers of the fleet's current table. Runs within `running`.

    A server is spare with nothing in flight, at two looks in a row, while nobody waits for a place.
    """

    def __init__(self, *, fleet: Fleet, admission: Admission, settings: ConformanceSettings) -> None:
        self._fleet = fleet
        self._admission = admission
        self._settings = settings
        self._watches: dict[Replica, Watch] = {}
        self._terms: dict[Replica, _Terms] = {}
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._counts: dict[tuple[str, Subject, Result], int] = {}
        self._running = False
        if settings.enabled:
            fleet.on_swap(self._swapped)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Checks for as long as the context lasts."""
        self._running = True
        for replica in self._watches:
            self._start(replica)
        try:
            yield
        finally:
            self._running = False
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def counts(self) -> list[CheckCount]:
        """How checks came out so far. May be called from any thread."""
        return [
            CheckCount(pair=pair, subject=subject, result=result, count=count)
            for (pair, subject, result), count in list(self._counts.items())
        ]

    def replicas(self) -> list[ReplicaConformance]:
        """What is known of each server. May be called from any thread."""
        return list(self._replicas())

    def distrust(self, pair: str, capability: Capability, detail: str) -> None:
        """Takes `capability` from every server of the speculative arm of `pair`: their answers in traffic are not the
        target's."""
        for watch in self._watches.values():
            if watch.pair == pair:
                watch.distrust(capability, detail)

    # The servers that there are.

    def _swapped(self, previous: Snapshot | None, snapshot: Snapshot) -> None:
        present: set[Replica] = set()
        for served in snapshot.routes.values():
            route, pool = served.route, served.speculative
            if pool is None or route.speculative is None:
                continue
            terms = _Terms(route.speculative, route.plain, route.pair.spec.max_draft_tokens)
            for replica in pool.replicas:
                if replica not in present:
                    self._meet(route.pair.metadata.key, replica, terms)
                present.add(replica)
        for replica in self._watches.keys() - present:
            self._forget(replica)

    def _meet(self, pair: str, replica: Replica, terms: _Terms) -> None:
        if self._terms.get(replica) == terms:
            return
        self._forget(replica)
        self._terms[replica] = terms
        self._watches[replica] = Watch(pair, replica, terms.speculative)
        self._start(replica)

    def _forget(self, replica: Replica) -> None:
        self._watches.pop(replica, None)
        self._terms.pop(replica, None)
        task = self._tasks.pop(replica, None)
        if task is not None:
            task.cancel()

    def _start(self, replica: Replica) -> None:
        if self._running:
            work = self._work(self._watches[replica])
            self._tasks[replica] = asyncio.get_running_loop().create_task(work)

    # One server's checks, one after the other.

    async def _work(self, watch: Watch) -> None:
        retry_s = _SHORTEST_RETRY_S
        while True:
            if watch.replica.upstream.drafting.withheld is not None:  # it cannot draft at all: nothing to check
                await asyncio.sleep(_LOOK_S)
                continue
            watch.begin()
            try:
                known = await self._checked(watch)
            except Exception:  # the task's top: an unexpected error must not end the checks of a server
                _log.exception("%s: the check of the engine failed", watch.replica.name)
                known = False
            if known:
                retry_s = _SHORTEST_RETRY_S
                await self._rest(watch, self._settings.every_s * random.uniform(1.0 - _JITTER, 1.0 + _JITTER))
            else:
                await asyncio.sleep(retry_s)
                retry_s = min(2.0 * retry_s, _LONGEST_RETRY_S)

    async def _checked(self, watch: Watch) -> bool:
        """Whether the server was checked; False where it did not answer, or was lost meanwhile."""
        snapshot = self._fleet.enter()
        try:
            check = self._check(watch, snapshot)
            if check is None:
                return False
            watch.replica.acquire(0, time.perf_counter())
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    findings = await check.run()
            finally:
                watch.replica.release(0, time.perf_counter())
        except (UpstreamError, Overloaded, TimeoutError) as exc:
            _log.info("%s: the check of the engine was not answered: %s", watch.replica.name, type(exc).__name__)
            return False
        finally:
            self._fleet.leave(snapshot)
        if watch.is_another:
            return False
        await self._conclude(watch, findings)
        return True

    def _check(self, watch: Watch, snapshot: Snapshot) -> Check | None:
        """The check to make now; None where no plain server is up."""
        served = _served(watch.pair, snapshot)
        terms = self._terms.get(watch.replica)
        if served is None or terms is None:
            return None
        plain = watch.replica if watch.replica in served.plain.replicas else served.plain.least_busy()
        if plain is None:
            return None
        longest = watch.replica.upstream.drafting.longest
        draft_length = terms.draft_length if longest is None else min(terms.draft_length, longest)
        return Check(
            speculative=Side(watch.replica, terms.speculative, draft_length),
            plain=Side(plain, terms.plain, 0),
            seed=random.getrandbits(_SEED_BITS),
        )

    async def _conclude(self, watch: Watch, findings: list[Finding]) -> None:
        for finding in findings:
            key = (watch.pair, finding.subject, finding.result)
            self._counts[key] = self._counts.get(key, 0) + 1
        watch.checked_s = time.time()
        if watch.apply(findings):
            with contextlib.suppress(SlipstreamError):  # what runs there goes on plainly, where it can be told so
                await watch.replica.stop_drafting()

    async def _rest(self, watch: Watch, for_s: float) -> None:
        """Returns when the server is due and spare, or is another one than was checked."""
        loop = asyncio.get_running_loop()
        due_s, probe_s = loop.time() + for_s, loop.time() + self._settings.probe_s
        spare_before = False
        while True:
            await asyncio.sleep(_LOOK_S)
            if loop.time() >= probe_s:
                await _probe(watch.replica)
                probe_s = loop.time() + self._settings.probe_s
            if watch.is_another:
                watch.renew()
                return
            spare = loop.time() >= due_s and not watch.replica.outstanding and not self._admission.queued
            if spare and spare_before:
                return
            spare_before = spare

    def _replicas(self) -> Iterator[ReplicaConformance]:
        for watch in list(self._watches.values()):
            served = _served(watch.pair, self._fleet.current)
            if served is None or served.speculative is None or watch.replica not in served.speculative.replicas:
                continue
            yield ReplicaConformance(
                pair=watch.pair,
                index=served.speculative.replicas.index(watch.replica),
                server=watch.replica.name,
                withheld={name: why.reason.value for name, why in watch.replica.withheld.items()},
                findings=list(watch.findings.values()),
                checked_s=watch.checked_s,
            )


def _served(pair: str, snapshot: Snapshot) -> ServedRoute | None:
    return next((one for one in snapshot.routes.values() if one.route.pair.metadata.key == pair), None)


async def _probe(replica: Replica) -> None:
    """A server that does not answer a probe is lost, as one that a request cannot reach."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            await replica.upstream.probe()
    except (SlipstreamError, TimeoutError):
        replica.lost()
