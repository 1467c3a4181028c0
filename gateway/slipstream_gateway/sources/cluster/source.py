"""The cluster as the source of the routing table.

A gateway that could not reach its cluster since its start may have a manifest file as its fallback: all of it is served
plainly.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slipstream_core.errors import ManifestError
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.reflector import Pace, Reflector
from slipstream_core.manifest.files import read_file
from slipstream_core.manifest.kill_switch import KillEvent, Kills, killed_in, order_of, with_note, with_turns
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.naming import child_name
from slipstream_core.manifest.parse import parse
from slipstream_core.manifest.reports import RENEW_S, pair_object_key
from slipstream_core.manifest.table import RoutingTable, compile_table
from slipstream_core.settings import ClusterSettings
from slipstream_core.tasks import cancel

from slipstream_gateway.fleet.fleet import ConfigurationStatus, Fleet, Origin
from slipstream_gateway.sources.cluster.assemble import PAIRS, POLICIES
from slipstream_gateway.sources.cluster.endpoints import unlisted_addresses
from slipstream_gateway.sources.cluster.reporting import Reporter
from slipstream_gateway.sources.cluster.server_report import Reachability, withheld_by_own_kills, withheld_servers
from slipstream_gateway.sources.cluster.snapshot import ClusterSnapshot, SnapshotWriter, read_snapshot
from slipstream_gateway.sources.cluster.view import SLICES, ClusterView, paths_of, selector_of, trim

_WHY = "the cluster was not reached since the start: its fallback file is served plainly"
_log = logging.getLogger(__name__)


def fallback_table(path: Path, *, namespace: str) -> RoutingTable | None:
    """The table of the file at `path`; None where it cannot be used, for a reason that is logged.

    Pairs that name no servers are reached by the DNS name of the Service that the operator makes for them, in
    `namespace` where they name none.
    """
    try:
        objects = parse(read_file(path), name=path.name)
    except ManifestError as exc:
        _log.error("the fallback manifest cannot be used: %s", exc)
        return None
    pairs = [item for item in objects if isinstance(item, ModelPair)]
    endpoints = {
        pair.metadata.key: unlisted_addresses(child_name(pair.metadata.name), pair.metadata.namespace or namespace)
        for pair in pairs
    }
    return compile_table(objects, endpoints=endpoints, kills={pair.metadata.key: _WHY for pair in pairs})


CALL_TIMEOUT_S = 5.0
FIRST_LIST_S = 5.0
FIRST_LIST_WITH_KEPT_S = 2.0
CONFIRM_WITHIN_S = 0.5
_MOST_NAMED = 20


class ClusterSource:
    """Watches the pairs, the policies and their servers, and swaps the resulting table into the fleet.

    The snapshot of the last stop counts until the cluster answers; without one, the fallback file does, with everything
    plain. Entering the source waits for the first lists, but never long: a gateway starts without its cluster.

    `own_kills` are turned at this gateway and kept in memory alone: they need no API server, and end with a restart.
    They add to the kills of the cluster, and undo none.

    A change takes effect for requests first. A kill or a rolled-back class, new or gone, is then written to the
    snapshot before it is reported, so that a crash cannot revert a confirmed one; but a slow volume delays a report by
    `CONFIRM_WITHIN_S` only.
    """

    def __init__(
        self, settings: ClusterSettings, fleet: Fleet, *, pace: Pace | None = None, renew_s: float = RENEW_S
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self.own_kills = Kills()
        self._latest_turns: dict[str, KillEvent] = {}  # of every pair: `own_kills` has the latest of all alone
        self._client = KubeClient(settings.kubeconfig, name="slipstream-gateway", call_timeout_s=CALL_TIMEOUT_S)
        self._heard_before_s = time.monotonic()
        self._kept: Origin = "none"
        self._fallback: RoutingTable | None = None
        self._view = ClusterView(self._publish, self._read_kept(), settings.namespaces, settings.grants)
        self._reflectors = {
            kind: [self._reflector(kind, namespace, pace) for namespace in settings.namespaces or (None,)]
            for kind in (PAIRS, POLICIES, SLICES)
        }
        self._reporter = Reporter(
            self._client,
            namespace=settings.report_namespace,
            namespaces=settings.namespaces,
            applied=lambda: self._confirmed,
            withheld=lambda: {**withheld_servers(fleet.current), **withheld_by_own_kills(self.own_kills.pairs)},
            unreachable=lambda: self._reachability.unreachable,
            in_use=lambda: [pair_object_key(pair) for pair in sorted(fleet.use.lately())],
            waiting=lambda: [pair_object_key(pair) for pair in sorted(fleet.use.waiting())],
            owner=settings.pod,
            renew_s=renew_s,
        )
        fleet.use.on_change(self._reporter.changed)
        self._reachability = Reachability(lambda: fleet.current, every_s=renew_s, changed=self._reporter.changed)
        self._writer = SnapshotWriter(settings.snapshot, self._view.snapshot) if settings.snapshot else None
        self._is_open = self._is_different = False
        self._to_keep = 0
        self._reported: dict[str, int] = {}
        self._confirmed: dict[str, int] = {}
        self._unconfirmed = asyncio.Event()
        self._published: tuple[Origin, str] = ("none", "")
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for reflector in self._all():
            self._start(reflector.run())
        await self._first_lists()
        self._is_open = self._is_different = True
        self._publish()
        _log.info("the configuration comes from: %s", self._origin())
        if self._writer is not None:
            self._start(self._writer.run())
        await self._confirm()
        self._start(self._confirm_on())
        self._start(self._reporter.run())
        self._start(self._reachability.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await cancel(*self._tasks)
        if self._writer is not None:
            await self._writer.flush()
        await self._reporter.withdraw()
        await self._client.aclose()

    def apply(self, event: KillEvent) -> None:
        known = self._latest_turns.get(event.pair)
        if known is not None and order_of(known) > order_of(event):
            return
        self._latest_turns[event.pair] = event
        if known is None or order_of(known) < order_of(event):
            _log.warning("this gateway's own kill switch of %s is turned %s", event.pair, "on" if event.on else "off")
        self.own_kills = with_note(with_turns(self.own_kills, [event]), event)
        self._is_different = True
        self._publish()
        self._reporter.changed()

    def is_killed_by_cluster(self, pair: str) -> bool:
        """Whether the cluster's objects kill `pair`, as far as this gateway knows them."""
        return pair in self._view.assembler.killed_pairs()

    def status(self) -> ConfigurationStatus:
        reflectors = self._all()
        return ConfigurationStatus(
            origin=self._origin(),
            connected=self._reporter.reachable and all(reflector.connected for reflector in reflectors),
            age_s=max(time.monotonic() - min(map(self._heard_s, reflectors)), 0.0),
            generation=self._fleet.current.table.generation if self._is_open else "",
            without_servers=self._without_servers() if self._is_open else (),
        )

    def _without_servers(self) -> tuple[str, ...]:
        routes = self._fleet.current.routes.items()
        lacking = [model for model, served in routes if not served.plain.replicas and not served.scales_to_zero]
        return tuple(lacking[:_MOST_NAMED])

    def _all(self) -> list[Reflector]:
        return [reflector for reflectors in self._reflectors.values() for reflector in reflectors]

    def _origin(self) -> Origin:
        """A snapshot is updated by the cluster's lists one by one; any other origin ends with the first list."""
        reflectors = (*self._reflectors[PAIRS], *self._reflectors[POLICIES])
        if all(reflector.synced.is_set() for reflector in reflectors):
            return "cluster"
        return self._kept if self._kept == "snapshot" or not self._is_any_synced() else "cluster"

    def _heard_s(self, reflector: Reflector) -> float:
        """The server's last sign of life for a reflector: a connected one would have received any change."""
        if not reflector.synced.is_set():
            return self._heard_before_s
        return max(reflector.contact_s, self._reporter.contact_s) if reflector.connected else reflector.contact_s

    def _read_kept(self) -> ClusterSnapshot | None:
        """The snapshot of the last stop; in its absence the fallback file is loaded."""
        kept = read_snapshot(self._settings.snapshot) if self._settings.snapshot is not None else None
        if kept is not None:
            self._kept = "snapshot"
            self._heard_before_s -= max(time.time() - kept.written_s, 0.0)
        elif self._settings.fallback is not None:
            self._fallback = fallback_table(self._settings.fallback, namespace=self._settings.report_namespace)
            self._kept = "fallback" if self._fallback is not None else "none"
        return kept

    def _reflector(self, kind: str, namespace: str | None, pace: Pace | None) -> Reflector:
        sink = self._view.sink(kind, namespace)
        paths, selector = paths_of(kind, namespace), selector_of(kind)
        return Reflector(self._client, paths, sink, selector=selector, trim=trim(kind), pace=pace)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _first_lists(self) -> None:
        """Wait until everything was listed once or refused, for a limited time."""
        limit_s = FIRST_LIST_S if self._kept == "none" else FIRST_LIST_WITH_KEPT_S
        try:
            async with asyncio.timeout(limit_s):
                for reflector in self._all():
                    await reflector.answered.wait()
        except TimeoutError:
            _log.warning("the cluster was not completely listed within %g s: the gateway starts without", limit_s)

    def _publish(self) -> None:
        """Swap a changed table into the fleet. The next call makes up for a swap that fails."""
        if not self._is_open:
            return
        origin, incomplete = self._origin(), self._what_is_missing()
        self._is_different |= self._view.assembler.flush() or (origin, incomplete) != self._published
        is_different = self._is_different
        if is_different:
            own = self.own_kills.pairs
            table, killed = killed_in(self._table(origin), own), self._view.assembler.killed_pairs() | own.keys()
            self._fleet.swap(table, incomplete=incomplete, killed=killed)
            self._is_different, self._published = False, (origin, incomplete)
        is_newer = self._reported != self._view.applied
        # A fallback must not replace a snapshot of the cluster.
        if self._writer is not None and self._is_any_synced():
            is_urgent = self._view.assembler.take_urgent()
            if is_urgent or is_different or is_newer:
                asked = self._writer.changed(at_once=is_urgent)
                self._to_keep = asked if is_urgent else self._to_keep
        if is_newer:
            self._reported = dict(self._view.applied)
            self._unconfirmed.set()

    async def _confirm_on(self) -> None:
        """Report applied changes until cancelled."""
        while True:
            await self._unconfirmed.wait()
            await self._confirm()

    async def _confirm(self) -> None:
        self._unconfirmed.clear()
        applied = self._reported
        if self._writer is not None:
            await self._writer.settled(self._to_keep, limit_s=CONFIRM_WITHIN_S)
        self._confirmed = applied
        self._reporter.changed()

    def _is_any_synced(self) -> bool:
        return any(reflector.synced.is_set() for reflector in self._reflectors[PAIRS])

    def _table(self, origin: Origin) -> RoutingTable:
        return self._fallback if origin == "fallback" and self._fallback is not None else self._view.assembler.table()

    def _what_is_missing(self) -> str:
        """Why a model that is not in the table may exist all the same; empty where it cannot."""
        if all(reflector.synced.is_set() for reflector in self._reflectors[PAIRS]):
            return ""
        return {
            "none": "No configuration has been found yet: the cluster cannot be read.",
            "fallback": "This model is not known yet: the cluster cannot be read, a fallback is in use.",
            "snapshot": "This model is not known yet: the cluster cannot be read, a snapshot of it is in use.",
        }.get(self._origin(), "This model is not known yet: the cluster has not been listed completely.")
