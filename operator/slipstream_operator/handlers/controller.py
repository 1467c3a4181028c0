"""The controller: workers take objects from the queue and reconcile them.

It is level-triggered: only the present state counts, not the events that led to it. An error affects one object only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial

from slipstream_core.endpoint_rules import EndpointRules
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeConflict, KubeError
from slipstream_core.manifest.status import Phase

from slipstream_operator.children.writer import ChildWriter
from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.evidence_archive import EvidenceArchive
from slipstream_operator.cluster.gateway_reports import GatewayReports
from slipstream_operator.cluster.ownership import RENEW_S, Ownership
from slipstream_operator.cluster.refused_pods import RefusedPods
from slipstream_operator.cluster.resources import PARENTS, Kind, ObjectKey, Resource
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.errors import OperatorError
from slipstream_operator.handlers.informer import Informer
from slipstream_operator.handlers.metrics import Metrics
from slipstream_operator.handlers.pairs import PairReconciler
from slipstream_operator.handlers.parts import Parts
from slipstream_operator.handlers.policies import PolicyReconciler
from slipstream_operator.handlers.resync import Resync, WatchCheck
from slipstream_operator.handlers.work_queue import WorkQueue
from slipstream_operator.rollout.checks import CanaryChecks
from slipstream_operator.rollout.evidence import CollectedEvidence
from slipstream_operator.settings import OperatorSettings
from slipstream_operator.status.events import EventPoster
from slipstream_operator.status.writer import StatusWriter
from slipstream_operator.types import KubeObject, ServingDefaults

STUCK_S = 300.0

_TICK_S = 0.1
_LOOK_S = 1.0
_DEAD_LEASES_S = 60.0

_logger = logging.getLogger(__name__)


class Controller:
    """The whole operator except kopf's watch, which calls `observe`, and the source of the evidence.

    `settings` are complete: see `OperatorSettings.at`. `defaults` are those of all pairs. The source adds policies with
    new outcomes to `fed`. The controller removes and queues them about once a second. `clock` has a time zone.
    `clock_s` is monotonic.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        resources: dict[Kind, Resource],
        settings: OperatorSettings,
        defaults: ServingDefaults,
        evidence: CollectedEvidence,
        fed: set[ObjectKey],
        metrics: Metrics,
        clock: Callable[[], datetime],
        clock_s: Callable[[], float],
    ) -> None:
        self._client, self._resources, self._settings = client, resources, settings
        self._fed = fed
        self._metrics, self._clock, self._clock_s = metrics, clock, clock_s
        self._cache, self._specs, self._gateways = ObjectCache(), SpecIndex(settings.grants), GatewayReports()
        everywhere: tuple[str | None, ...] = settings.namespaces or (None,)
        in_reports, release = (settings.report_namespace,), settings.release or ""
        self.scopes = {
            resource: in_reports if kind is Kind.LEASE else everywhere for kind, resource in resources.items()
        }
        self.queue: WorkQueue[ObjectKey] = WorkQueue()
        self.watch_check = WatchCheck(clock_s=clock_s)
        self._informer = informer = Informer(
            cache=self._cache,
            specs=self._specs,
            gateways=self._gateways,
            queue=self.queue,
            clock=clock,
            on_deleted=self._pair_deleted,
        )
        self.resync = Resync(
            client=client,
            scopes=self.scopes,
            informer=informer,
            watch_check=self.watch_check,
            every_s=settings.resync_s,
            clock_s=clock_s,
        )
        self._events = EventPoster(client, clock_s=clock_s, on_note=metrics.transition)
        statuses = StatusWriter(client, self._cache, resources, on_newer=informer.observe_own, clock_s=clock_s)
        # With a kubeconfig it runs on its user's own machine; a pod serves manifests that others write.
        rules = EndpointRules(settings.check_endpoints, shared=settings.kubeconfig is None)
        self._checks = CanaryChecks(rules=rules, changed=fed.add, clock_s=clock_s)
        parts = Parts(
            cache=self._cache,
            specs=self._specs,
            gateways=self._gateways,
            evidence=evidence,
            archive=EvidenceArchive(client),
            checks=self._checks,
            statuses=statuses,
            events=self._events,
            clock=clock,
        )
        children = ChildWriter(client, self._cache, resources, release=release)
        refused = RefusedPods(client)
        self._pairs = PairReconciler(parts, children=children, refused=refused, defaults=defaults)
        self._policies = PolicyReconciler(parts)
        self._ownership = Ownership(client, release=release, clock_s=clock_s)
        self._begun_s: dict[ObjectKey, float] = {}
        self._show_metrics()

    def observe(self, event_type: str | None, item: KubeObject) -> None:
        """Handle one watch event; `event_type` is None for a listed object."""
        self._metrics.event(Kind(item["kind"]))
        self.resync.observe(event_type, item)

    async def run(self) -> None:
        """Reconcile until cancelled, from the first complete list on.

        Raises:
            KubeRejected: the operator lacks the rights to list.
        """
        await self.resync.first()
        self._informer.queue_all()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._settings.workers):
                tasks.create_task(self._work())
            tasks.create_task(self._tick())
            tasks.create_task(self._clear_dead_leases())
            tasks.create_task(self._ownership.run())
            tasks.create_task(self._events.run())
            tasks.create_task(self._checks.run())
            tasks.create_task(self.resync.run())

    def stuck(self) -> list[ObjectKey]:
        """The objects whose present reconcile has taken longer than all deadlines together."""
        now_s = self._clock_s()
        return [key for key, begun_s in self._begun_s.items() if now_s - begun_s > STUCK_S]

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            self._begun_s[key] = self._clock_s()
            try:
                with self._metrics.reconcile(key.kind):
                    look_again_s = await self._reconcile(key)
            except KubeError as exc:
                pause_s = self.queue.failed(key, retry_after_s=exc.retry_after_s)
                level = logging.DEBUG if isinstance(exc, KubeConflict) else logging.WARNING
                _logger.log(level, "%s: retrying in %.1f s: %s", key, pause_s, exc)
            except OperatorError as exc:
                _logger.warning("%s: retrying in %.1f s: %s", key, self.queue.failed(key), exc)
            except Exception:
                # Top of the worker: an error with one object must not affect the others.
                _logger.exception("%s: unexpected error, retrying in %.1f s", key, self.queue.failed(key))
            else:
                if look_again_s is not None:
                    self.queue.schedule(key, look_again_s)
                self.queue.done(key)
            finally:
                self._begun_s.pop(key, None)

    async def _reconcile(self, key: ObjectKey) -> float | None:
        """Reconcile one object. Returns the seconds until the next reconcile without an event."""
        for affected in self._specs.resolve():
            self.queue.add(affected)
        raw, parsed = self._cache.get(key), self._specs.served(key)
        reconciler = self._pairs if key.kind is Kind.MODEL_PAIR else self._policies
        if raw is None or parsed is None:
            reconciler.forget(key)
            self.queue.forget(key)
            return None
        if (refusal := await self._ownership.refusal(key.namespace)) is not None:
            self._events.post(raw, (refusal,))
            return RENEW_S
        # This includes an object that is being deleted: gateways use it until it no longer exists, and a finalizer may
        # delay that for a long time.
        return await reconciler.reconcile(key, raw, parsed)

    def _pair_deleted(self, raw: KubeObject) -> None:
        self._pairs.deleted(raw)

    async def _tick(self) -> None:
        look_s = 0.0
        while True:
            await asyncio.sleep(_TICK_S)
            self.queue.add_due()
            if (now_s := self._clock_s()) >= look_s:
                look_s = now_s + _LOOK_S
                self._informer.look_for_dead_gateways()
                while self._fed:
                    self.queue.add(self._fed.pop())

    async def _clear_dead_leases(self) -> None:
        while True:
            await asyncio.sleep(_DEAD_LEASES_S)
            for key in self._gateways.dead_for_good(self._clock()):
                lease = self._cache.get(key)
                if lease is None:
                    continue
                path = self._resources[Kind.LEASE].path(key.namespace, key.name)
                try:
                    await self._client.delete(path, uid=lease["metadata"]["uid"])
                except KubeError as exc:  # a remaining Lease is harmless
                    _logger.debug("%s cannot be deleted: %s", key, exc)

    def _show_metrics(self) -> None:
        watch, check = self._metrics.watch, self.watch_check
        watch("queue_depth", "Objects that wait to be reconciled.", lambda: len(self.queue))
        watch("objects_failing", "Objects whose last reconcile failed.", lambda: self.queue.failing)
        watch("synced", "Whether the first list is complete.", lambda: float(self.resync.synced))
        for kind in self._resources:
            labels = {"kind": kind.value}
            watch("objects", "Objects that are known.", partial(self._cache.count, kind), labels)
            watch("watch_missed", "Changes that the watch has missed.", partial(check.missed, kind), labels)
        for phase in Phase:
            watch("classes", "Request classes by phase.", partial(self._classes_in, phase), {"phase": phase.value})
        names = ("kind", "condition", "status", "reason")
        self._metrics.count("conditions", "Objects by the content of their conditions.", names, self._conditions)

    def _conditions(self) -> Counter[tuple[str, ...]]:
        return Counter(
            (kind.value, condition["type"], condition["status"], condition["reason"])
            for kind in PARENTS
            for raw in self._cache.of_kind(kind)
            for condition in (raw.get("status") or {}).get("conditions") or ()
        )

    def _classes_in(self, phase: Phase) -> int:
        statuses = (raw.get("status") or {} for raw in self._cache.of_kind(Kind.SPECULATION_POLICY))
        return sum(entry.get("phase") == phase for status in statuses for entry in status.get("classes") or ())
