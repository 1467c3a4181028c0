"""A routing table joined with its live replicas."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec
from slipstream_core.manifest.adapters import adapter_name, adapters_of, base_and_adapter
from slipstream_core.manifest.engines import DialectName, WireProtocol
from slipstream_core.manifest.table import Route, RoutingTable

from slipstream_gateway.upstreams.pool import Pool


def is_killed(route: Route) -> bool:
    """Whether a kill switch is on for `route`: that of its pair, of its policy, or of an invalid object."""
    policy = route.policy
    return bool(
        route.killed is not None or route.pair.spec.kill_switch or (policy is not None and policy.spec.kill_switch)
    )


class ReplicaKey(NamedTuple):
    """The identity of a server: entries of the manifest with equal keys share one replica."""

    protocol: WireProtocol
    endpoint: str
    model: str
    api_key_env: str | None
    tls: str = ""  # a fingerprint of the TLS credentials; empty without TLS
    drafts_per_request: bool = True
    dialect: DialectName = DialectName.OPENAI


class ServedRoute(NamedTuple):
    """A route with the replicas of its arms; `keys` has the keys of all of them. `speculative` None: the pair has no
    draft. `fallback` has the replicas of `Route.fallback`, `canary` those of `Route.canary`. `scales_to_zero`: the pair
    may have no server, and its requests then wait for one."""

    route: Route
    plain: Pool
    speculative: Pool | None
    keys: frozenset[ReplicaKey]
    fallback: Pool | None = None
    canary: ServedRoute | None = None
    scales_to_zero: bool = False

    @property
    def adapter(self) -> str | None:
        """The name on the servers of the LoRA adapter that this route is for; None: it is for the model itself."""
        return None if self.route.adapter is None else self.route.plain.model


def with_adapter(served: ServedRoute, name: str) -> ServedRoute | None:
    """`served` for an adapter of its pair: the same replicas. None: the pair does not have it. A new revision without
    the adapter gets none of its requests."""
    route = served.route.for_adapter(name)
    if route is None:
        return None
    canary, served_canary = served.route.canary, None
    if canary is not None and served.canary is not None:
        served_canary = with_adapter(served.canary, name)
    if canary is not None and served_canary is not None:
        route = msgspec.structs.replace(route, canary=msgspec.structs.replace(canary, route=served_canary.route))
    return served._replace(route=route, canary=served_canary)


class Snapshot:
    """One routing table with its replicas, and the number of its users.

    `killed` has the keys of the pairs whose kill switch is on, served or not. `incomplete` is the reason why a model
    that is not in this table may exist nevertheless; empty if that is impossible.
    """

    def __init__(
        self, table: RoutingTable, routes: Mapping[str, ServedRoute], killed: AbstractSet[str], incomplete: str
    ) -> None:
        self.table = table
        self.routes = routes
        self.served = tuple(one for served in routes.values() for one in (served, served.canary) if one is not None)
        """The routes, and those of their canaries."""
        self.keys = frozenset(key for served in self.served for key in served.keys)
        self.killed = killed | {served.route.pair.metadata.key for served in routes.values() if is_killed(served.route)}
        self.incomplete = incomplete
        self._adapters: dict[str, ServedRoute] = {}
        self.in_use = 0
        self.retired = False

    def find(self, model: str) -> ServedRoute | None:
        """What serves the clients' name `model`: that of a pair, or MODEL:NAME for an adapter. None: nothing."""
        served = self.routes.get(model) or self._adapters.get(model)
        if served is None:
            base, name = base_and_adapter(model)
            of_base = self.routes.get(base)
            served = None if of_base is None else with_adapter(of_base, name)
            if served is not None:
                self._adapters[model] = served
        return served

    def models(self) -> list[str]:
        """The names that `find` knows, each pair's followed by those of its adapters."""
        return [
            name
            for model, served in self.routes.items()
            for name in (model, *(adapter_name(model, one) for one in adapters_of(served.route.pair)))
        ]
