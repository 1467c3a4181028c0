"""What the reflectors tell, put where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipstream_gateway.cluster.access import Json
from slipstream_gateway.cluster.assemble import Assembler
from slipstream_gateway.cluster.collection import Collection, generation_of, key_of
from slipstream_gateway.cluster.endpoints import Endpoints, service_of
from slipstream_gateway.cluster.watching import Change
from slipstream_gateway.manifest.reports import object_key


class ObjectSink:
    """Pairs or policies of one namespace (None: of all) on their way to the assembler.

    `applied` gets their generations by `namespace/Kind/name`, what changed last at the end; `news` is called
    after each batch of news, within the same turn of the event loop.
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

    def preload(self, item: Json, *, killed: bool) -> None:
        """An object that was known before the cluster was asked."""
        self._collection.put(item)
        if killed:
            self._collection.hold_kill(key_of(item))
        self._bring(key_of(item))

    def replaced(self, items: Sequence[Json]) -> None:
        for key in self._collection.replace(self._namespace, items):
            self._bring(key)
        self._news()

    def changed(self, changes: Sequence[Change]) -> None:
        for item, deleted in changes:
            if self._collection.remove(item) if deleted else self._collection.put(item):
                self._bring(key_of(item))
        self._news()

    def _bring(self, key: str) -> None:
        kind = self._collection.kind
        namespace, _, name = key.partition("/")
        report_key = object_key(namespace, kind, name)
        item = self._collection.get(key)
        if item is None:
            self._assembler.remove(kind, key)
            self._applied.pop(report_key, None)
            return
        self._assembler.put(kind, item, killed=self._collection.is_killed(key))
        if self._applied.get(report_key) != generation_of(item):
            self._applied.pop(report_key, None)
            self._applied[report_key] = generation_of(item)


class EndpointSink:
    """EndpointSlices of one namespace (None: of all) on their way to the assembler."""

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
