"""A routing table joined with its live replicas."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec
from slipstream_core.manifest.adapters import adapter_name, adapters_of
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
    may have no server, and its requests then wait for one. `adapter` is the name on the servers of the LoRA adapter
    that this route is for; None: it is for the model itself."""

    route: Route
    plain: Pool
    speculative: Pool | None
    keys: frozenset[ReplicaKey]
    fallback: Pool | None = None
    canary: ServedRoute | None = None
    scales_to_zero: bool = False
    adapter: str | None = None


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
    return served._replace(route=route, canary=served_canary, adapter=route.plain.model)


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
        self.by_name = _by_name(routes)
        """The routes by the clients' names of models, LoRA adapters included."""
        self.served = tuple(one for served in routes.values() for one in (served, served.canary) if one is not None)
        """The routes, and those of their canaries."""
        self.keys = frozenset(key for served in self.served for key in served.keys)
        self.killed = killed | {served.route.key for served in routes.values() if is_killed(served.route)}
        self.incomplete = incomplete
        self.in_use = 0
        self.retired = False


def _by_name(routes: Mapping[str, ServedRoute]) -> dict[str, ServedRoute]:
    """Each pair's model, followed by its adapters. MODEL:NAME is an adapter, even if another pair has that model."""
    found: dict[str, ServedRoute] = {}
    for model, served in routes.items():
        found.setdefault(model, served)
        for adapter in adapters_of(served.route.pair):
            of_adapter = with_adapter(served, adapter.name)
            if of_adapter is not None:
                found[adapter_name(model, adapter)] = of_adapter
    return found
