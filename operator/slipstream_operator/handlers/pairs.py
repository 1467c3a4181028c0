"""The handler of ModelPairs: collect the observed state, decide, write children, status and Events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.status import ModelPairStatus, SpeculationPolicyStatus
from slipstream_core.manifest.versions import model_kept

from slipstream_operator.children.writer import ChildWriter
from slipstream_operator.cluster.cache import ObjectCache, key_of
from slipstream_operator.cluster.gateway_reports import GatewayReports
from slipstream_operator.cluster.resources import ObjectKey
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.cluster.workload import workload_of
from slipstream_operator.errors import ChildrenRejected
from slipstream_operator.reconcile.usage import deleted_in_use, usage_of
from slipstream_operator.status.events import EventPoster
from slipstream_operator.status.writer import StatusWriter
from slipstream_operator.types import KubeObject, Observed, PairPlan, ServingDefaults

PairDecision = Callable[[Observed, datetime], PairPlan]
Status = TypeVar("Status")


class PairReconciler:
    """Reconciles ModelPairs with the plans of `decide`."""

    def __init__(
        self,
        *,
        decide: PairDecision,
        cache: ObjectCache,
        specs: SpecIndex,
        gateways: GatewayReports,
        children: ChildWriter,
        statuses: StatusWriter,
        events: EventPoster,
        defaults: ServingDefaults,
        clock: Callable[[], datetime],
    ) -> None:
        self._decide, self._clock, self._defaults = decide, clock, defaults
        self._cache, self._specs, self._gateways = cache, specs, gateways
        self._children, self._statuses, self._events = children, statuses, events
        self._rejected: dict[ObjectKey, tuple[Problem, ...]] = {}

    async def reconcile(self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource) -> float | None:
        """Reconcile one pair. Returns the seconds until the next reconcile without an event.

        Raises:
            KubeError: to be retried.
            ChildrenRejected: to be retried; the status already has the rejected children.
        """
        plan = self._plan(key, raw, parsed)
        is_terminating = bool(raw["metadata"].get("deletionTimestamp"))  # its children are deleted with it
        if plan.children is not None and not is_terminating:
            done = await self._children.bring_about(raw, plan.children)
            if done.written or done.rejected != self._rejected.get(key, ()):
                self._rejected[key] = done.rejected
                plan = self._plan(key, raw, parsed)  # with the children as they are now
        look_again_s = await self._statuses.write(raw, plan.status)
        if look_again_s is None:
            self._events.post(raw, plan.notes)
        if plan.children is not None and not is_terminating and (rejected := self._rejected.get(key)):
            raise ChildrenRejected("; ".join(map(str, rejected)))
        return min((s for s in (look_again_s, plan.next_look_s) if s is not None), default=None)

    def deleted(self, raw: KubeObject) -> None:
        """Drop the state of a deleted pair. `raw` is its last known version."""
        status = read_status(raw.get("status"), ModelPairStatus) or ModelPairStatus()
        usage = usage_of(status, self._gateways.last_request_of(key_of(raw)), self._clock())
        if usage.in_use:
            model = None if status.last_good is None else model_kept(status.last_good)
            self._events.post(raw, (deleted_in_use(model or raw["spec"].get("model"), usage),))

    def forget(self, key: ObjectKey) -> None:
        self._rejected.pop(key, None)
        self._children.forget(key)
        self._statuses.forget(key)

    def _plan(self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource) -> PairPlan:
        return self._decide(self._observe(key, raw, parsed), self._clock())

    def _observe(self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource) -> Observed:
        pair_key = parsed.pair_key or ""
        deployment = workload_of(self._cache, key, raw["metadata"]["uid"])
        policy = self._specs.policy_in_force(pair_key)
        policy_raw = None if policy is None else self._cache.get(policy)
        return Observed(
            raw={**raw, "status": self._statuses.prior(raw)},
            last_good=self._specs.last_good(key),
            problems=self._specs.resolution.problems.get(str(key), ()),
            ignored=parsed.ignored,
            rejected=self._rejected.get(key, ()),
            deployment=deployment,
            pods=tuple(self._cache.pods_of(key)),
            policy=None if policy_raw is None else read_status(policy_raw.get("status"), SpeculationPolicyStatus),
            policy_killed=bool(self._specs.killed_policies(pair_key)),
            gateways=self._gateways.status_of(key, raw["metadata"].get("generation", 0), raw["metadata"].get("uid")),
            withheld=self._gateways.withheld_of(key),
            unreachable=self._gateways.unreachable_of(key),
            last_request=self._gateways.last_request_of(key),
            demand=self._gateways.demand_of(key),
            name=self._specs.name_claim(key),
            defaults=self._defaults,
        )


def read_status(raw: Any, kind: type[Status]) -> Status | None:
    """A status as its type; None if there is none, or if it was edited and is invalid."""
    if not raw:
        return None
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        return None
