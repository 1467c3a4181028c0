"""Routing tables joined with live replicas, swapped in whole.

A request uses the snapshot it started with. A replica lives as long as some snapshot that is current, or still has
requests, names it; its connections are kept across reloads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from slipstream_core.errors import UpstreamError
from slipstream_core.manifest.engines import Protocol
from slipstream_core.manifest.table import Backend, Route, RoutingTable
from slipstream_core.settings import HealthSettings

from slipstream_gateway.fleet.kill import DraftStops, is_killed
from slipstream_gateway.fleet.pair_use import PairUse
from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.pool import Pool, Replica

_HEALTH = HealthSettings()
_log = logging.getLogger(__name__)
_TLS_SCHEMES = ("https://", "grpcs://")


class ReplicaKey(NamedTuple):
    """What makes two mentions of a server the same server."""

    protocol: Protocol
    endpoint: str
    model: str
    api_key_env: str | None
    tls: str = ""  # tells credentials of different days apart, where TLS is spoken
    drafts_per_request: bool = True


Connect = Callable[[ReplicaKey], Upstream]
Swapped = Callable[["Snapshot | None", "Snapshot"], None]
"""Is told the snapshot before, None at the first, and the new one."""


class ServedRoute(NamedTuple):
    """A route with the replicas of its arms, whose `keys` those are; `speculative` None: the pair has no draft.
    `fallback` are those of `Route.fallback`."""

    route: Route
    plain: Pool
    speculative: Pool | None
    keys: frozenset[ReplicaKey]
    fallback: Pool | None = None


class Snapshot:
    """One routing table with its replicas, and how many requests use it.

    `killed` are the keys of the pairs whose kill switch is on, served or not. `incomplete` says why a model that is not
    in it may exist all the same; empty where that cannot be.
    """

    def __init__(
        self, table: RoutingTable, routes: Mapping[str, ServedRoute], killed: AbstractSet[str], incomplete: str
    ) -> None:
        self.table = table
        self.routes = routes
        self.keys = frozenset(key for served in routes.values() for key in served.keys)
        self.killed = killed | {served.route.pair.metadata.key for served in routes.values() if is_killed(served.route)}
        self.incomplete = incomplete
        self.in_use = 0
        self.retired = False


class Fleet:
    """All replicas, by key, the current snapshot, and the `use` that clients make of it."""

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Callable[[], float],
        health: HealthSettings = _HEALTH,
        tls: Callable[[], str] = lambda: "",
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._health = health
        self._tls = tls
        self._replicas: dict[ReplicaKey, Replica] = {}
        self._users: dict[ReplicaKey, int] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._current: Snapshot | None = None
        self._snapshots: list[Snapshot] = []
        self._watchers: list[Swapped] = []
        self.use = PairUse(clock)
        self._stops = DraftStops(leave=self.leave, current=lambda: self.current)

    @property
    def current(self) -> Snapshot:
        if self._current is None:
            raise UpstreamError("No manifest is loaded yet.")
        return self._current

    def swap(self, table: RoutingTable, *, incomplete: str = "", killed: AbstractSet[str] = frozenset()) -> None:
        """Makes `table` current. Requests that run keep what they started with, but for a kill switch: where one is
        turned on, their servers are told to stop drafting. `incomplete`: see `Snapshot`. `killed` are the keys of
        pairs whose kill switch is on beyond what the table says: they may have lost their route with it."""
        before = self._current.routes if self._current is not None else {}
        routes = {name: self._serve(route, before.get(name)) for name, route in table.routes.items()}
        self._make_current(Snapshot(table, routes, killed, incomplete))

    def on_swap(self, call: Swapped) -> None:
        """Calls `call` at every table from now on; it must be quick and must not raise."""
        self._watchers.append(call)

    def _make_current(self, snapshot: Snapshot) -> None:
        self._snapshots.append(snapshot)
        for key in snapshot.keys:
            self._users[key] = self._users.get(key, 0) + 1
        previous, self._current = self._current, snapshot
        for call in self._watchers:
            call(previous, snapshot)
        if previous is not None:
            self._stops.swapped(previous, snapshot, tuple(self._snapshots))
            previous.retired = True
            self._drop_if_unused(previous)

    def reconnect(self) -> None:
        """The same table over new connections, where TLS is spoken: its credentials have changed. What runs goes on
        over the old ones."""
        before = self.current
        routes = {name: self._serve(served.route, None) for name, served in before.routes.items()}
        self._make_current(Snapshot(before.table, routes, before.killed, before.incomplete))

    def enter(self) -> Snapshot:
        """The current snapshot, in use until `leave`."""
        snapshot = self.current
        snapshot.in_use += 1
        return snapshot

    def leave(self, snapshot: Snapshot) -> None:
        snapshot.in_use -= 1
        if snapshot.retired:
            self._drop_if_unused(snapshot)

    async def aclose(self) -> None:
        await self._stops.aclose()
        for replica in self._replicas.values():
            await replica.upstream.aclose()
        self._replicas.clear()
        await asyncio.gather(*self._closing)

    def _serve(self, route: Route, before: ServedRoute | None) -> ServedRoute:
        """A route that stays the same object stays as it is served: one change among a thousand costs one."""
        if before is not None and before.route is route:
            return before
        keys: set[ReplicaKey] = set()
        plain = self._pool(route.plain, keys, speculative=False)
        speculative = self._pool(route.speculative, keys, speculative=True) if route.speculative is not None else None
        fallback = self._pool(route.fallback, keys, speculative=False) if route.fallback is not None else None
        return ServedRoute(route, plain, speculative, frozenset(keys), fallback)

    def _pool(self, backend: Backend, keys: set[ReplicaKey], *, speculative: bool) -> Pool:
        replicas = []
        for endpoint in dict.fromkeys(backend.endpoints):
            tls = self._tls() if endpoint.startswith(_TLS_SCHEMES) else ""
            key = ReplicaKey(
                backend.protocol, endpoint, backend.model, backend.api_key_env, tls, backend.drafts_per_request
            )
            if key not in self._replicas:
                self._replicas[key] = Replica(endpoint, self._connect(key), self._health)
            replicas.append(self._replicas[key])
            keys.add(key)
        return Pool(replicas, clock=self._clock, speculative=speculative, health=self._health)

    def _drop_if_unused(self, snapshot: Snapshot) -> None:
        if snapshot.in_use:
            return
        self._snapshots.remove(snapshot)
        for key in snapshot.keys:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._close_later(key, self._replicas.pop(key))

    def _close_later(self, key: ReplicaKey, replica: Replica) -> None:
        task = asyncio.get_running_loop().create_task(replica.upstream.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        _log.info("%s is no longer used and gets closed", key.endpoint)
