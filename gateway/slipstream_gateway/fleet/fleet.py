"""Routing tables joined with live replicas, and replaced as a whole; and the interface of the source that loads them.

A request uses the snapshot with which it started. A replica is kept as long as it is in the current snapshot or in one
with requests. Its connections are kept across reloads. A gateway cannot refuse the deletion of a pair that clients use,
so it logs it (`Departures`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec
from slipstream_core.errors import UpstreamError
from slipstream_core.manifest.kill_switch import KillEvent
from slipstream_core.manifest.reports import LATELY_S
from slipstream_core.manifest.table import Backend, Route, RoutingTable
from slipstream_core.settings import HealthSettings

from slipstream_gateway.fleet.kill import DraftStops
from slipstream_gateway.fleet.snapshot import ReplicaKey, ServedRoute, Snapshot
from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.pool import Pool, Replica

Origin = Literal["file", "cluster", "snapshot", "fallback", "none"]


class ConfigurationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the gateway's configuration.

    `origin`: `file` or `cluster`; from the start until the cluster's first response, the stored `snapshot` of it, a
    `fallback` file, or `none`. `connected`: changes arrive at once. `age_s`: seconds since the source's last response,
    0 for a file. `generation` identifies the table; `without_servers` has the models that have no servers now.
    """

    origin: Origin
    connected: bool = True
    age_s: float = 0.0
    generation: str = ""
    without_servers: tuple[str, ...] = ()


class ConfigurationSource(Protocol):
    """Loads the routing table into the fleet on entry, and again after each change until it is exited."""

    def apply(self, event: KillEvent) -> None:
        """Puts a turn of a kill switch in force at once, in memory."""
        ...

    def status(self) -> ConfigurationStatus: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PairUse:
    """The running requests of each pair, the time at which its last one ended, and its requests that wait for a first
    server, by the pair's key. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._seen_s: dict[str, float] = {}
        self._watchers: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        """Calls `call` whenever a pair that scales to zero gets into use, and when its first request begins to wait or
        its last one stops. It must be quick and must not raise."""
        self._watchers.append(call)

    def begin(self, pair: str, *, announced: bool = False) -> None:
        """Counts the start of a request. `announced`: a first use after a pause calls the watchers."""
        is_new = announced and pair not in self._running and not self._is_recent(pair)
        self._running[pair] += 1
        if is_new:
            self._announce()

    def end(self, pair: str) -> None:
        self._running[pair] -= 1
        if not self._running[pair]:
            del self._running[pair]
        self._seen_s[pair] = self._clock()

    @contextmanager
    def held(self, pair: str) -> Iterator[None]:
        """While the context is open, a request waits for a first server. It counts as running."""
        self._held[pair] += 1
        self.begin(pair)
        if self._held[pair] == 1:
            self._announce()
        try:
            yield
        finally:
            self.end(pair)
            self._held[pair] -= 1
            if not self._held[pair]:
                del self._held[pair]
                self._announce()

    def waiting(self) -> Mapping[str, int]:
        """The number of requests that wait for a first server, by pair."""
        return self._held

    def running(self, pair: str) -> int:
        """The number of running requests of the pair."""
        return self._running[pair]

    def lately(self) -> frozenset[str]:
        """The pairs with a running request, or with one that ended within `LATELY_S`."""
        self._seen_s = {pair: seen_s for pair, seen_s in self._seen_s.items() if self._is_recent(pair)}
        return frozenset(self._running) | frozenset(self._seen_s)

    def _is_recent(self, pair: str) -> bool:
        return self._clock() - self._seen_s.get(pair, -math.inf) <= LATELY_S

    def _announce(self) -> None:
        for call in self._watchers:
            call()


_HEALTH = HealthSettings()
_TLS_SCHEMES = ("https://", "grpcs://")
_log = logging.getLogger(__name__)

Connect = Callable[[ReplicaKey], Upstream]
Swapped = Callable[[Snapshot | None, Snapshot], None]
"""Called with the previous snapshot, None for the first one, and the new snapshot."""


class Fleet:
    """All replicas by key, the current snapshot, and the clients' `use` of the pairs."""

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
        """Makes `table` current. Running requests keep their snapshot. If a kill switch is turned on, their servers get
        the command to stop drafting. `incomplete`: see `Snapshot`. `killed` has the keys of pairs whose kill switch is
        on, in addition to those of the table: the table may lack the routes of these pairs."""
        before = self._current.routes if self._current is not None else {}
        routes = {name: self._serve(route, before.get(name)) for name, route in table.routes.items()}
        self._make_current(Snapshot(table, routes, killed, incomplete))

    def on_swap(self, call: Swapped) -> None:
        """Calls `call` after each swap from now on. It must be quick and must not raise."""
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
        """Replaces the connections that use TLS, because its credentials have changed; the table stays the same.
        Running requests keep their connections."""
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
        """The route with its pools. An unchanged route object keeps its pools, so that a swap costs only the changed
        routes."""
        if before is not None and before.route is route:
            return before
        keys: set[ReplicaKey] = set()
        plain = self._pool(route.plain, keys, speculative=False)
        speculative = self._pool(route.speculative, keys, speculative=True) if route.speculative is not None else None
        fallback = self._pool(route.fallback, keys, speculative=False) if route.fallback is not None else None
        canary = None if route.canary is None else self._serve(route.canary.route, None)
        serving = route.pair.spec.serving
        return ServedRoute(
            route,
            plain,
            speculative,
            frozenset(keys),
            fallback,
            canary,
            scales_to_zero=serving is not None and serving.scales_to_zero,
        )

    def _pool(self, backend: Backend, keys: set[ReplicaKey], *, speculative: bool) -> Pool:
        replicas = []
        for endpoint in dict.fromkeys(backend.endpoints):
            tls = self._tls() if endpoint.startswith(_TLS_SCHEMES) else ""
            key = ReplicaKey(
                backend.protocol,
                endpoint,
                backend.model,
                backend.api_key_env,
                tls,
                backend.drafts_per_request,
                backend.dialect,
            )
            if key not in self._replicas:
                self._replicas[key] = Replica(endpoint, self._connect(key), self._health)
            replicas.append(self._replicas[key])
            keys.add(key)
        return Pool(
            replicas,
            clock=self._clock,
            speculative=speculative,
            health=self._health,
            caches_prefixes=backend.caches_prefixes,
        )

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


class Departures:
    """Logs and counts the model names that a new table lacks although their pair had requests recently."""

    def __init__(self, fleet: Fleet) -> None:
        self.count = 0
        self._use = fleet.use
        fleet.on_swap(self._swapped)

    def _swapped(self, previous: Snapshot | None, snapshot: Snapshot) -> None:
        routes = previous.routes if previous is not None else {}
        gone = routes.keys() - snapshot.routes.keys()
        if not gone:
            return
        used = self._use.lately()
        for model in sorted(gone):
            pair = routes[model].route.key
            if pair in used:
                self.count += 1
                running = self._use.running(pair)
                _log.warning(
                    "the model %s of pair %s is gone though clients use it: %d requests run on, new ones get 404",
                    model,
                    pair,
                    running,
                )
