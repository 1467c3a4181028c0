"""Checks of every server of a speculative arm by probes: when it appears, after it was unreachable, and on a schedule.

A new server is checked at once. A repeated check waits, up to a limit, until the server is spare; it starts at a random
time, so that servers are not all checked together. Plain decoding never waits for a check. Each gateway checks for
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec
from slipstream_core.settings import ConformanceSettings
from slipstream_core.types import Capability

from slipstream_gateway.admission import Admission
from slipstream_gateway.decide.route.guards import off
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.lossless.findings import Finding, Result, Subject
from slipstream_gateway.lossless.schedule import Pilot
from slipstream_gateway.lossless.server_checks import Duty, ServerChecks
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.upstreams.pool import Replica


class CheckCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of checks of a pair's servers with this result. A server of several pairs counts for each."""

    pair: str
    subject: Subject
    result: Result
    count: int


class ReplicaConformance(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a speculative arm. `index` is its place in the arm's pool. `withheld` maps the capabilities that it
    may not use to reason codes. `checked_s` is the wall-clock time of the last result, None before the first.
    `waits_for` is the reason why no check is made now, None if checks are made on schedule."""

    pair: str
    index: int
    server: str
    withheld: dict[Capability, str]
    findings: list[Finding]
    checked_s: float | None
    waits_for: str | None


class Conformance:
    """The checks of all servers of the fleet's current table. Runs within `running`. `deaths` stops probes that break
    servers."""

    def __init__(
        self, *, fleet: Fleet, admission: Admission, settings: ConformanceSettings, deaths: QueriesOfDeath
    ) -> None:
        self._deaths = deaths
        self._pilots: dict[str, Pilot] = {}
        self._fleet = fleet
        self._admission = admission
        self._settings = settings
        self._servers: dict[Replica, ServerChecks] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._counts: Counter[tuple[str, Subject, Result]] = Counter()
        self._running = False
        if settings.enabled:
            fleet.on_swap(self._swapped)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs checks for the duration of the context."""
        self._running = True
        for server in self._servers.values():
            server.start()
        try:
            yield
        finally:
            self._running = False
            for server in self._servers.values():
                self._end(server.stop())
            await asyncio.gather(*self._ending, return_exceptions=True)

    def counts(self) -> list[CheckCount]:
        """The numbers of checks by result. Thread-safe."""
        return [
            CheckCount(pair=pair, subject=subject, result=result, count=count)
            for (pair, subject, result), count in list(self._counts.items())
        ]

    def replicas(self) -> list[ReplicaConformance]:
        """The state of each server. Thread-safe."""
        if not self._servers:  # also before there is a table
            return []
        return [
            _state_of(served.route.key, index, replica, server)
            for served in self._fleet.current.routes.values()
            for index, replica in enumerate(served.speculative.replicas if served.speculative is not None else ())
            if (server := self._servers.get(replica)) is not None
        ]

    def distrust(self, pair: str, capability: Capability, detail: str) -> None:
        """Withdraws `capability` from every server of the speculative arm of `pair`, because their answers in traffic
        did not follow the target."""
        for server in self._servers.values():
            if pair in server.watch.pairs:
                server.watch.distrust(capability, detail)

    def _swapped(self, previous: Snapshot | None, snapshot: Snapshot) -> None:
        duties = duties_of(snapshot)
        for replica, duty in duties.items():
            self._meet(replica, duty)
        for replica in self._servers.keys() - duties.keys():
            self._end(self._servers.pop(replica).stop())
        for pair in self._pilots.keys() - {duty.pairs[0] for duty in duties.values()}:
            del self._pilots[pair]

    def _meet(self, replica: Replica, duty: Duty) -> None:
        known = self._servers.get(replica)
        if known is not None and known.duty.sides == duty.sides:
            self._end(known.follow(duty))
            return
        if known is not None:
            self._end(known.stop())
        self._servers[replica] = ServerChecks(
            replica,
            duty,
            fleet=self._fleet,
            admission=self._admission,
            settings=self._settings,
            deaths=self._deaths,
            pilot=self._pilots.setdefault(duty.pairs[0], Pilot()),
            found=self._count,
        )
        if self._running:
            self._servers[replica].start()

    def _end(self, cancelled: asyncio.Task[None] | None) -> None:
        """Keeps a reference to a cancelled task until it has ended."""
        if cancelled is not None:
            self._ending.add(cancelled)
            cancelled.add_done_callback(self._ending.discard)

    def _count(self, pairs: Sequence[str], findings: Sequence[Finding]) -> None:
        self._counts.update((pair, finding.subject, finding.result) for pair in pairs for finding in findings)


def _state_of(pair: str, index: int, replica: Replica, server: ServerChecks) -> ReplicaConformance:
    return ReplicaConformance(
        pair=pair,
        index=index,
        server=replica.name,
        withheld={name: why.reason.value for name, why in replica.withheld_now().items()},
        findings=list(server.watch.findings.values()),
        checked_s=server.watch.checked_s,
        waits_for=server.waits_for,
    )


def duties_of(snapshot: Snapshot) -> dict[Replica, Duty]:
    """The duty of each server of a speculative arm."""
    found: dict[Replica, Duty] = {}
    for served in snapshot.served:
        pool, speculative = served.speculative, served.route.speculative
        if pool is None or speculative is None:
            continue
        why = _why_off(served, snapshot)
        draft_length = 0 if why is not None else served.route.pair.spec.max_draft_tokens
        duty = Duty((served.route.key,), served, speculative, draft_length, why)
        for replica in pool.replicas:
            found[replica] = _joined(found[replica], duty) if replica in found else duty
    return found


def _why_off(served: ServedRoute, snapshot: Snapshot) -> str | None:
    verdict = off(served.route)
    if verdict is not None:
        return verdict.detail
    key = served.route.key
    return f"the kill switch of ModelPair/{key} is on" if key in snapshot.killed else None


def _joined(one: Duty, other: Duty) -> Duty:
    """The duty of a server that serves the pairs of both."""
    is_on = one.off is None or other.off is None
    return one._replace(
        pairs=one.pairs + other.pairs,
        draft_length=max(one.draft_length, other.draft_length),
        off=None if is_on else one.off,
    )
