"""A gateway's view of its cluster: objects, servers, and the routing table of both.

Sinks pass the lists and events of the reflectors to the assembler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from slipstream_core.kube.client import Json
from slipstream_core.kube.reflector import Change, Sink
from slipstream_core.manifest.naming import PART_OF, PART_OF_SLIPSTREAM
from slipstream_core.manifest.reports import applied_key, object_key
from slipstream_core.settings import NO_GRANTS, Grants

from slipstream_gateway.sources.cluster.assemble import PAIRS, POLICIES, Assembler
from slipstream_gateway.sources.cluster.collection import Collection, generation_of, key_of, trim_object
from slipstream_gateway.sources.cluster.endpoints import Endpoints, service_of, trim_slice
from slipstream_gateway.sources.cluster.snapshot import ClusterSnapshot, KeptObject, new_snapshot

_log = logging.getLogger(__name__)


class ObjectSink:
    """Passes pairs or policies of one namespace (None: of all) to the assembler.

    `applied` gets their generations by `manifest.reports.applied_key`, what changed last at the end; `news` is called
    after each batch of news, within the same turn of the event loop. An object that cannot be brought is tried again
    with the next news, and is not in `applied` as what it is now.
    """

    def __init__(
        self,
        collection: Collection,
        assembler: Assembler,
        *,
        namespace: str | None,
        applied: dict[str, int],
        news: Callable[[], None],
    ) -> None:
        self._collection = collection
        self._assembler = assembler
        self._namespace = namespace
        self._applied = applied
        self._news = news
        self._pending: dict[str, str | None] = {}  # objects still to be passed on, with their key in `applied`
        self._stuck: set[str] = set()

    def preload(self, item: Json, *, killed: bool) -> None:
        """Add an object that was known before the first list."""
        self._collection.put(item)
        if killed:
            self._collection.hold_kill(key_of(item))
        self._bring(key_of(item), None)

    def replaced(self, items: Sequence[Json]) -> None:
        before = {key_of(item): self._applied_key(item) for item in self._collection.values()}
        for key in self._collection.replace(self._namespace, items):
            self._pending.setdefault(key, before.get(key))
        self._bring_pending()

    def changed(self, changes: Sequence[Change]) -> None:
        for item, deleted in changes:
            known = self._collection.get(key_of(item))
            before = None if known is None else self._applied_key(known)
            if self._collection.remove(item) if deleted else self._collection.put(item):
                self._pending.setdefault(key_of(item), before)
        self._bring_pending()

    def _bring_pending(self) -> None:
        for key, before in list(self._pending.items()):
            try:
                self._bring(key, before)
            except Exception:  # a bug with one object must not delay the kills of others
                if key not in self._stuck:
                    _log.exception("%s %s cannot be applied, retrying", self._collection.kind, key)
                self._stuck.add(key)
            else:
                del self._pending[key]
                self._stuck.discard(key)
        self._news()

    def _bring(self, key: str, before: str | None) -> None:
        """Pass on an object, or its deletion; `before` is its key in `applied`, if any."""
        kind, item = self._collection.kind, self._collection.get(key)
        if item is None:
            self._assembler.remove(kind, key)
        else:
            self._assembler.put(kind, item, killed=self._collection.is_killed(key))
        now = None if item is None else self._applied_key(item)
        if before is not None and before != now:
            self._applied.pop(before, None)
        if item is not None and now is not None and self._applied.get(now) != generation_of(item):
            self._applied.pop(now, None)
            self._applied[now] = generation_of(item)

    def _applied_key(self, item: Json) -> str:
        metadata = item["metadata"]
        key = object_key(str(metadata.get("namespace")), self._collection.kind, metadata["name"])
        return applied_key(key, str(metadata.get("uid") or ""))


class EndpointSink:
    """Passes EndpointSlices of one namespace (None: of all) to the assembler."""

    def __init__(
        self, endpoints: Endpoints, assembler: Assembler, *, namespace: str | None, news: Callable[[], None]
    ) -> None:
        self._endpoints = endpoints
        self._assembler = assembler
        self._namespace = namespace
        self._news = news

    def replaced(self, items: Sequence[Json]) -> None:
        services = self._endpoints.replace(self._namespace, items)
        if services is None:
            self._assembler.all_servers_changed()
        for service in services or ():
            self._assembler.servers_changed(service)
        self._news()

    def changed(self, changes: Sequence[Change]) -> None:
        for item, deleted in changes:
            if deleted:
                self._endpoints.remove(item)
            else:
                self._endpoints.put(item)
            if (service := service_of(item)) is not None:
                self._assembler.servers_changed(service)
        self._news()


SLICES = "EndpointSlice"
_GROUP = "/apis/slipstream.dev/v1alpha1"
_PLURALS = {PAIRS: "modelpairs", POLICIES: "speculationpolicies"}
_SLICE_GROUPS = ("/apis/discovery.k8s.io/v1", "/apis/discovery.k8s.io/v1beta1")


class ClusterView:
    """Fed by sinks; `news` is called after each batch of a sink, within the same turn of the event loop.

    `assembler` has the table. `applied` has the generation of every object by `namespace/Kind/name`, what changed last
    at the end.
    """

    def __init__(
        self,
        news: Callable[[], None],
        kept: ClusterSnapshot | None,
        namespaces: tuple[str, ...],
        grants: Grants = NO_GRANTS,
    ) -> None:
        """`kept` is the initial state, limited to `namespaces` (none: all)."""
        self.applied: dict[str, int] = {}
        self._news = news
        self._endpoints = Endpoints(kept.endpoints if kept is not None else {})
        self.assembler = Assembler(self._endpoints.of, grants)
        self._collections = {kind: Collection(kind) for kind in _PLURALS}
        for item in kept.objects if kept is not None else ():
            self._preload(item, namespaces)

    def sink(self, kind: str, namespace: str | None) -> Sink:
        """The sink of `kind` in `namespace` (None: in all)."""
        if kind == SLICES:
            return EndpointSink(self._endpoints, self.assembler, namespace=namespace, news=self._news)
        return self._object_sink(kind, namespace)

    def snapshot(self) -> ClusterSnapshot:
        """The snapshot for the next start."""
        objects = (KeptObject(item=item, killed=killed) for item, killed in self.assembler.last_good())
        return new_snapshot(tuple(objects), self._endpoints.known())

    def _object_sink(self, kind: str, namespace: str | None) -> ObjectSink:
        return ObjectSink(
            self._collections[kind], self.assembler, namespace=namespace, applied=self.applied, news=self._news
        )

    def _preload(self, kept: KeptObject, namespaces: tuple[str, ...]) -> None:
        kind, namespace = kept.item["kind"], kept.item["metadata"]["namespace"]
        if kind in self._collections and namespace in (namespaces or (namespace,)):
            self._object_sink(kind, None).preload(kept.item, killed=kept.killed)


def paths_of(kind: str, namespace: str | None) -> tuple[str, ...]:
    """Where `kind` in `namespace` (None: in all) is listed and watched: the first path that the server knows."""
    within = "" if namespace is None else f"/namespaces/{namespace}"
    if kind == SLICES:
        return tuple(f"{group}{within}/endpointslices" for group in _SLICE_GROUPS)
    return (f"{_GROUP}{within}/{_PLURALS[kind]}",)


def selector_of(kind: str) -> str:
    """The labels of the objects of `kind` that matter; empty for all."""
    return f"{PART_OF}={PART_OF_SLIPSTREAM}" if kind == SLICES else ""


def trim(kind: str) -> Callable[[Json], Json]:
    """The function that makes an object of `kind` smaller."""
    return trim_slice if kind == SLICES else lambda item: trim_object(item, kind=kind)
