"""A routing table joined with its live replicas."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

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
        self.in_use = 0
        self.retired = False
