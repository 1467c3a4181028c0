"""Watched objects put together as a routing table, one route at a time: an event costs what it changes, no more.

Pairs and policies are judged by `manifest.resolve`, over those alone that can have to do with each other: the pairs
that want the same model name, and the policies of those.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
from slipstream_core.kube.client import Json
from slipstream_core.manifest.canary import canary_route
from slipstream_core.manifest.fingerprint import SpecHashes
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.naming import canary_name, child_name
from slipstream_core.manifest.resolve import Resolution, kills_of, resolve
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.revision import revision_of
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.manifest.standing import Standing, pair_status_of, standing_of
from slipstream_core.manifest.status import Phase
from slipstream_core.manifest.table import CanaryRoute, Route, RoutingTable, compile_route, table_of
from slipstream_core.manifest.versions import GoodVersion, good_version, parse_version, version_key
from slipstream_core.settings import NO_GRANTS, Grants

from slipstream_gateway.sources.cluster.collection import key_of

PAIRS, POLICIES = "ModelPair", "SpeculationPolicy"
_MAX_LOGGED = 8  # remembered messages of one object
_log = logging.getLogger(__name__)


class _Known(msgspec.Struct, kw_only=True):
    """An object: as it is now, and its last version that could be used. `taken` is what must speculate no longer, by
    this object."""

    raw: Json
    newest: ParsedResource
    good: GoodVersion | None
    taken: frozenset[str] = frozenset()

    def resources(self) -> Iterator[ParsedResource]:
        """The versions in use. The kill switch is always that of the newest version."""
        yield self.newest
        if self.newest.item is None and self.good is not None:
            yield msgspec.structs.replace(self.good.parsed, killed=self.newest.killed)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The unknown fields of the version in use."""
        return (self.newest if self.good is None else self.good.parsed).ignored


class _Hashed(NamedTuple):
    """The hashes of a pair and its policy, cached: they are costly, and their status changes often."""

    pair: ModelPair
    policy: SpeculationPolicy
    hashes: SpecHashes


class Assembler:
    """Keeps a routing table in step with objects.

    `endpoints_of` gives the addresses of a pair's servers by the key of its Service. `grants` is what namespaces may
    use.
    """

    def __init__(self, endpoints_of: Callable[[str], tuple[str, ...]], grants: Grants = NO_GRANTS) -> None:
        self._endpoints_of, self._grants = endpoints_of, grants
        self._known: dict[tuple[str, str], _Known] = {}
        self._pairs_by_model: defaultdict[str, set[str]] = defaultdict(set)
        self._policies_by_pair: defaultdict[str, set[str]] = defaultdict(set)
        self._pair_by_service: dict[str, str] = {}
        self._routes: dict[str, Route] = {}
        self._hashed: dict[str, _Hashed] = {}
        self._killed: dict[tuple[str, str], frozenset[str]] = {}
        self._dirty: set[str] = set()
        self._is_urgent = False
        self._logged: dict[str, set[str]] = {}

    def put(self, kind: str, item: Json, *, killed: bool) -> None:
        """A new version of a pair or a policy. `killed`: its kill switch is on, whatever this version says."""
        key = key_of(item)
        before = self._known.get((kind, key))
        newest = self._parsed(item, before)
        if killed != newest.killed:
            newest = msgspec.structs.replace(newest, killed=killed)
        good = good_version(item, newest, before.good if before is not None else None)
        known = _Known(raw=item, newest=newest, good=good, taken=_taken(item, killed=killed))
        self._is_urgent |= known.taken != (before.taken if before is not None else frozenset())
        self._unindex(kind, key)
        self._known[kind, key] = known
        self._index(kind, key, known)

    def remove(self, kind: str, key: str) -> None:
        self._unindex(kind, key)
        known = self._known.pop((kind, key), None)
        if known is not None:
            self._is_urgent |= bool(known.taken)
            self._logged.pop(known.newest.key, None)
        if kind == PAIRS:
            self._hashed.pop(key, None)

    def servers_changed(self, service: str) -> None:
        """The addresses of the Service `namespace/name` may have changed."""
        if (pair := self._pair_by_service.get(service)) is not None:
            self._mark(pair)

    def all_servers_changed(self) -> None:
        for pair in self._pair_by_service.values():
            self._mark(pair)

    def last_good(self) -> Iterator[tuple[Json, bool]]:
        """Every object, and whether it is killed: its last usable spec, or the one it has where there is none, with
        the newest status."""
        for known in self._known.values():
            yield _kept(known), known.newest.killed

    def take_urgent(self) -> bool:
        """Whether a kill or a rolled-back class appeared or disappeared since the last call."""
        is_urgent, self._is_urgent = self._is_urgent, False
        return is_urgent

    def killed_pairs(self) -> frozenset[str]:
        """The keys of all pairs that an object kills, served or not."""
        return frozenset().union(*self._killed.values())

    def flush(self) -> bool:
        """Rebuild the changed routes. Returns whether the table has changed."""
        dirty, self._dirty = self._dirty, set()
        different = False
        for model in dirty:
            route = self._route(model)
            if route == self._routes.get(model):
                continue
            different = True
            if route is None:
                del self._routes[model]
            else:
                self._routes[model] = route
        return different

    def table(self) -> RoutingTable:
        """The table as of the last `flush`; the same objects give the same table in any order."""
        return table_of(self._routes[model] for model in sorted(self._routes))

    def _parsed(self, item: Json, before: _Known | None) -> ParsedResource:
        """Parse an object again only if its spec may have changed: the operator writes status all the time."""
        if before is None or before.raw.get("spec") != item.get("spec") or version_key(before.raw) != version_key(item):
            return parse_version(item)
        return before.newest

    def _route(self, model: str) -> Route | None:
        resources = list(self._resources(model))
        try:
            return self._compiled(model, resources)
        except Exception:  # a bug with one object must stop neither the others nor a kill
            _log.exception("the model %s keeps its present route", model)
            route = self._routes.get(model)
            if route is None:
                return None
            kills = kills_of(resources, (route.pair,), self._grants)
            return msgspec.structs.replace(route, killed=kills.get(route.key))

    def _resources(self, model: str) -> Iterator[ParsedResource]:
        """All objects that affect the route of `model`."""
        for pair in self._pairs_by_model.get(model, ()):
            yield from self._known[PAIRS, pair].resources()
            for policy in self._policies_by_pair.get(pair, ()):
                yield from self._known[POLICIES, policy].resources()

    def _compiled(self, model: str, resources: list[ParsedResource]) -> Route | None:
        resolution = resolve(resources, self._grants)
        self._log_problems(resolution, resources)
        pair = next((pair for pair in resolution.pairs.values() if pair.spec.model == model), None)
        if pair is None:
            return None
        key = pair.metadata.key
        policy = resolution.policies.get(key)
        route = compile_route(
            pair,
            policy,
            status=pair_status_of(self._known[PAIRS, key].raw.get("status")),
            endpoints=self._endpoints_of(_service(key)),
            standing=None if policy is None else self._standing(pair, policy),
            killed=resolution.kills.get(key),
        )
        return msgspec.structs.replace(route, canary=self._canary(key, route))

    def _canary(self, key: str, route: Route) -> CanaryRoute | None:
        """The new revision that the operator compares with that of `route`, once its servers are ready."""
        known = self._known[PAIRS, key]
        new = known.newest.canary
        endpoints = () if new is None else self._endpoints_of(_canary_service(key, new))
        return canary_route(route, new, known.raw.get("status"), endpoints)

    def _standing(self, pair: ModelPair, policy: SpeculationPolicy) -> Standing:
        key, known = pair.metadata.key, self._known[POLICIES, policy.metadata.key]
        if known.ignored or self._known[PAIRS, key].ignored:  # a newer operator's hash is also of what is ignored here
            return standing_of(policy, known.raw.get("status"))
        hashed = self._hashed.get(key)
        if hashed is None or hashed.pair is not pair or hashed.policy is not policy:
            hashed = self._hashed[key] = _Hashed(pair, policy, SpecHashes(pair, policy))
        return standing_of(policy, known.raw.get("status"), hashes=hashed.hashes)

    def _index(self, kind: str, key: str, known: _Known) -> None:
        for resource in known.resources():
            if kind == POLICIES and resource.pair_key is not None:
                self._policies_by_pair[resource.pair_key].add(key)
            elif resource.model is not None:
                self._pairs_by_model[resource.model].add(key)
                self._pair_by_service[_service(key)] = key
        if known.newest.canary is not None:
            self._pair_by_service[_canary_service(key, known.newest.canary)] = key
        if known.newest.killed:
            self._killed[kind, key] = frozenset(r.pair_key for r in known.resources() if r.pair_key is not None)
        self._mark_all(kind, key)

    def _unindex(self, kind: str, key: str) -> None:
        known = self._known.get((kind, key))
        if known is None:
            return
        self._mark_all(kind, key)
        for resource in known.resources():
            if kind == POLICIES and resource.pair_key is not None:
                _discard(self._policies_by_pair, resource.pair_key, key)
            elif resource.model is not None:
                _discard(self._pairs_by_model, resource.model, key)
                self._pair_by_service.pop(_service(key), None)
        if known.newest.canary is not None:
            self._pair_by_service.pop(_canary_service(key, known.newest.canary), None)
        self._killed.pop((kind, key), None)

    def _mark_all(self, kind: str, key: str) -> None:
        """Mark the routes that the object affects."""
        for resource in self._known[kind, key].resources():
            if (pair := resource.pair_key) is not None:
                self._mark(pair)

    def _mark(self, pair: str) -> None:
        known = self._known.get((PAIRS, pair))
        for resource in known.resources() if known is not None else ():
            if resource.model is not None:
                self._dirty.add(resource.model)

    def _log_problems(self, resolution: Resolution, resources: Iterable[ParsedResource]) -> None:
        """Log the problems and ignored fields of an object, once until it has none.

        An object may have two versions and affect two routes: its messages are remembered together.
        """
        ignored: dict[str, tuple[str, ...]] = {}
        for resource in resources:
            ignored[resource.key] = (*ignored.get(resource.key, ()), *resource.ignored)
        for key, fields in ignored.items():
            parts = [str(problem) for problem in resolution.problems.get(key, ())]
            if fields:
                parts.append(f"unknown fields are ignored: {', '.join(dict.fromkeys(fields))}")
            if not parts:
                self._logged.pop(key, None)
                continue
            logged = self._logged.setdefault(key, set())
            if (text := "; ".join(parts)) not in logged:
                if len(logged) >= _MAX_LOGGED:
                    logged.clear()
                logged.add(text)
                _log.warning("%s: %s", key, text)


def _service(pair: str) -> str:
    """The Service `namespace/name` of the pair `namespace/name`."""
    namespace, _, name = pair.rpartition("/")
    return f"{namespace}/{child_name(name)}"


def _canary_service(pair: str, new: ModelPair) -> str:
    """The Service of the revision of `new`, a new one of the pair `namespace/name`."""
    namespace, _, name = pair.rpartition("/")
    return f"{namespace}/{canary_name(name, revision_of(new))}"


def _discard(index: dict[str, set[str]], name: str, key: str) -> None:
    members = index.get(name, set())
    members.discard(key)
    if not members:
        index.pop(name, None)


def _taken(item: Json, *, killed: bool) -> frozenset[str]:
    """The classes that an object stops from speculating, from as much of its status as can be read."""
    status = item.get("status")
    classes = status.get("classes") if isinstance(status, dict) else None
    entries = [entry for entry in classes if isinstance(entry, dict)] if isinstance(classes, list) else []
    taken = {str(entry.get("name")) for entry in entries if entry.get("phase") == Phase.ROLLED_BACK.value}
    return frozenset(taken | {""} if killed else taken)


def _kept(known: _Known) -> Json:
    """The object as the next start loads it."""
    raw = known.raw
    if known.good is None or known.good.raw is raw:
        return raw
    good = known.good.raw
    kept = {name: value for name, value in good.items() if name != "status"}
    if not known.newest.killed:
        kept["spec"] = {name: value for name, value in good["spec"].items() if name != "killSwitch"}
    if "status" in raw:
        kept["status"] = raw["status"]
    return kept
