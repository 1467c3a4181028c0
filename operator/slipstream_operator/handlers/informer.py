"""Stores every change in the cache, and queues the objects that it affects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from slipstream_operator.cluster.cache import Change, ObjectCache
from slipstream_operator.cluster.gateway_reports import GatewayReports
from slipstream_operator.cluster.resources import PARENTS, WORKLOADS, Kind, ObjectKey
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.handlers.work_queue import WorkQueue
from slipstream_operator.types import KubeObject

_DELETED = "DELETED"

_logger = logging.getLogger(__name__)


class Informer:
    """Handles every list and event. Runs in the event loop and never waits."""

    def __init__(
        self,
        *,
        cache: ObjectCache,
        specs: SpecIndex,
        gateways: GatewayReports,
        queue: WorkQueue[ObjectKey],
        clock: Callable[[], datetime],
        on_deleted: Callable[[KubeObject], None],
    ) -> None:
        """`on_deleted` is called with the last state of each deleted pair."""
        self._on_deleted = on_deleted
        self._cache, self._specs, self._gateways = cache, specs, gateways
        self._queue, self._clock = queue, clock

    def observe(self, event_type: str | None, item: KubeObject) -> None:
        """Handle one watch event; `event_type` is None for a listed object."""
        change = self._cache.remove(item) if event_type == _DELETED else self._cache.put(item)
        if change is not None:
            self._take(change)

    def observe_own(self, parent: KubeObject) -> None:
        """Handle the answer to a write of this operator: the parent itself is being reconciled, related objects are
        queued."""
        if (change := self._cache.put(parent)) is not None:
            self._take_parent(change, queue_itself=False)

    def newest(self, kind: Kind) -> int:
        """The highest known resource version of any object of `kind`."""
        return self._cache.newest(kind)

    def observe_list(
        self, kind: Kind, items: Iterable[KubeObject], *, version: str, scope: str | None, seen: int = 0
    ) -> list[ObjectKey]:
        """Handle a complete list of `kind` in the namespace `scope` or all. Returns the objects that changed. `seen` is
        the value of `newest` before the list."""
        changes = self._cache.replace_kind(kind, items, version=version, scope=scope, seen=seen)
        for change in changes:
            self._take(change)
        return [change.key for change in changes]

    def queue_all(self) -> None:
        """Queue every parent."""
        for kind in PARENTS:
            for key in self._cache.keys(kind):
                self._queue.add(key)

    def look_for_dead_gateways(self) -> None:
        if self._gateways.expire(self._clock()):
            self.queue_all()

    def _take(self, change: Change) -> None:
        match change.key.kind:
            case Kind.MODEL_PAIR | Kind.SPECULATION_POLICY:
                self._take_parent(change)
            case Kind.LEASE:
                self._take_report(change)
            case _:
                for item in (change.before, change.after):
                    if item is not None and (pair := self._cache.pair_of(item)) is not None:
                        self._queue.add(pair)
                        if change.key.kind in WORKLOADS:  # the evidence depends on which servers run
                            for related in self._relations(pair):
                                self._queue.add(related)

    def _take_parent(self, change: Change, *, queue_itself: bool = True) -> None:
        key, related = change.key, self._relations(change.key)
        if key.kind is Kind.MODEL_PAIR and change.before is not None and _uid(change.before) != _uid(change.after):
            self._on_deleted(change.before)
        if change.after is None:
            self._specs.remove(key)
        else:
            self._specs.put(change.after)
        if queue_itself:
            self._queue.add(key)
        # A pair's status has figures of its policy, and a policy's status has the readiness of its pair.
        for other in {*related, *self._relations(key)} - {key}:
            self._queue.add(other)

    def _relations(self, key: ObjectKey) -> tuple[ObjectKey, ...]:
        parsed = self._specs.served(key)
        return () if parsed is None else tuple(self._specs.related(parsed.pair_key))

    def _take_report(self, change: Change) -> None:
        if change.after is None:
            concerned = self._gateways.remove(change.key)
        else:
            concerned = self._gateways.put(change.key, change.after, self._clock())
        if concerned is None:
            self.queue_all()
        elif concerned:
            for kind in PARENTS:
                for key in self._cache.keys(kind):
                    if str(key) in concerned:
                        self._queue.add(key)


def _uid(item: KubeObject | None) -> object:
    return None if item is None else item["metadata"]["uid"]
