"""A routing table joined with the live replicas that it names."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from slipstream_core.manifest.engines import WireProtocol
from slipstream_core.manifest.table import Route, RoutingTable

from slipstream_gateway.upstreams.pool import Pool


def is_killed(route: Route) -> bool:
    """Whether a kill switch is on for `route`: its pair's, its policy's, or one of an object that is broken."""
    policy = route.policy
    return bool(
        route.killed is not None or route.pair.spec.kill_switch or (policy is not None and policy.spec.kill_switch)
    )


class ReplicaKey(NamedTuple):
    """What makes two mentions of a server the same server."""

    protocol: WireProtocol
    endpoint: str
    model: str
    api_key_env: str | None
    tls: str = ""  # tells credentials of different days apart, where TLS is spoken
    drafts_per_request: bool = True


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
