"""A gateway's view of its cluster: objects, servers, and the routing table of both."""

from __future__ import annotations

from collections.abc import Callable

from slipstream_core.kube.client import Json
from slipstream_core.kube.reflector import Sink
from slipstream_core.manifest.naming import PART_OF, PART_OF_SLIPSTREAM
from slipstream_core.manifest.table import RoutingTable
from slipstream_core.settings import NO_GRANTS, Grants

from slipstream_gateway.sources.cluster.assemble import PAIRS, POLICIES, Assembler
from slipstream_gateway.sources.cluster.collection import Collection, trim_object
from slipstream_gateway.sources.cluster.endpoints import Endpoints, trim_slice
from slipstream_gateway.sources.cluster.sinks import EndpointSink, ObjectSink
from slipstream_gateway.sources.cluster.snapshot import ClusterSnapshot, KeptObject, new_snapshot

SLICES = "EndpointSlice"
_GROUP = "/apis/slipstream.dev/v1alpha1"
_PLURALS = {PAIRS: "modelpairs", POLICIES: "speculationpolicies"}
_SLICE_GROUPS = ("/apis/discovery.k8s.io/v1", "/apis/discovery.k8s.io/v1beta1")


class ClusterView:
    """Fed by sinks; `news` is called after each batch of a sink, within the same turn of the event loop.

    `applied` has the generation of every object by `namespace/Kind/name`, what changed last at the end.
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
        self._assembler = Assembler(self._endpoints.of, grants)
        self._collections = {kind: Collection(kind) for kind in _PLURALS}
        for item in kept.objects if kept is not None else ():
            self._preload(item, namespaces)

    def sink(self, kind: str, namespace: str | None) -> Sink:
        """The sink of `kind` in `namespace` (None: in all)."""
        if kind == SLICES:
            return EndpointSink(self._endpoints, self._assembler, namespace=namespace, news=self._news)
        return self._object_sink(kind, namespace)

    def take_changes(self) -> bool:
        """Whether the table has changed since the last call."""
        return self._assembler.flush()

    def take_urgent(self) -> bool:
        """Whether a kill or a rolled-back class appeared or disappeared since the last call."""
        return self._assembler.take_urgent()

    def killed_pairs(self) -> frozenset[str]:
        """The keys of all pairs that are killed, served or not."""
        return self._assembler.killed_pairs()

    def table(self) -> RoutingTable:
        return self._assembler.table()

    def snapshot(self) -> ClusterSnapshot:
        """The snapshot for the next start."""
        objects = (KeptObject(item=item, killed=killed) for item, killed in self._assembler.last_good())
        return new_snapshot(tuple(objects), self._endpoints.known())

    def _object_sink(self, kind: str, namespace: str | None) -> ObjectSink:
        return ObjectSink(
            self._collections[kind], self._assembler, namespace=namespace, applied=self.applied, news=self._news
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
