"""The handler of ModelPairs: collect the observed state, decide, write children, status and Events."""

from __future__ import annotations

from slipstream_core.manifest.canary import canary_status_of
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.revision import canary_of, revision_of
from slipstream_core.manifest.status import CanaryPhase, ModelPairStatus, SpeculationPolicyStatus, read_status
from slipstream_core.manifest.versions import model_kept

from slipstream_operator.children.identity import revision_label
from slipstream_operator.children.writer import ChildWriter
from slipstream_operator.cluster.cache import key_of
from slipstream_operator.cluster.refused_pods import RefusedPods
from slipstream_operator.cluster.resources import ObjectKey
from slipstream_operator.errors import ChildrenRejected
from slipstream_operator.handlers.parts import Parts
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.reconcile.usage import deleted_in_use, usage_of
from slipstream_operator.rollout.analysis.revisions import RevisionFacts
from slipstream_operator.types import KubeObject, Observed, ObservedCanary, PairPlan, ServingDefaults


class PairReconciler:
    """Reconciles ModelPairs. `defaults` are those of all pairs."""

    def __init__(self, parts: Parts, *, children: ChildWriter, refused: RefusedPods, defaults: ServingDefaults) -> None:
        self._cache, self._specs, self._gateways = parts.cache, parts.specs, parts.gateways
        self._evidence, self._statuses, self._events = parts.evidence, parts.statuses, parts.events
        self._clock, self._checks = parts.clock, parts.checks
        self._children, self._refused, self._defaults = children, refused, defaults
        self._rejected: dict[ObjectKey, tuple[Problem, ...]] = {}

    async def reconcile(self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource) -> float | None:
        """Reconcile one pair. Returns the seconds until the next reconcile without an event.

        Raises:
            KubeError: to be retried.
            ChildrenRejected: to be retried; the status already has the rejected children.
        """
        looks_s = [await self._look_for_refused(key, raw, revision) for revision in {"", self._revision_of(key)}]
        facts = self._facts(key, self._statuses.prior(raw))
        plan = self._plan(key, raw, parsed, facts)
        is_terminating = bool(raw["metadata"].get("deletionTimestamp"))  # its children are deleted with it
        if plan.children is not None and not is_terminating:
            done = await self._children.bring_about(raw, plan.children)
            if done.written or done.rejected != self._rejected.get(key, ()):
                self._rejected[key] = done.rejected
                plan = self._plan(key, raw, parsed, facts)  # with the children as they are now
        look_again_s = await self._statuses.write(raw, plan.status)
        if look_again_s is None:
            self._events.post(raw, plan.notes)
        if plan.children is not None and not is_terminating and (rejected := self._rejected.get(key)):
            raise ChildrenRejected("; ".join(map(str, rejected)))
        return min((s for s in (look_again_s, plan.next_look_s, *looks_s) if s is not None), default=None)

    def deleted(self, raw: KubeObject) -> None:
        """Drop the state of a deleted pair. `raw` is its last known version."""
        status = read_status(raw.get("status"), ModelPairStatus) or ModelPairStatus()
        usage = usage_of(status, self._gateways.last_request_of(key_of(raw)), self._clock())
        if usage.in_use:
            model = None if status.last_good is None else model_kept(status.last_good)
            self._events.post(raw, (deleted_in_use(model or raw["spec"].get("model"), usage),))

    def forget(self, key: ObjectKey) -> None:
        self._rejected.pop(key, None)
        self._evidence.end_comparison(key)
        self._checks.end(key)
        self._children.forget(key)
        self._refused.forget(key)
        self._statuses.forget(key)

    async def _look_for_refused(self, key: ObjectKey, raw: KubeObject, revision: str) -> float | None:
        workload = self._cache.workload_of(key, raw["metadata"]["uid"], revision=revision)
        pods = [pod for pod in self._cache.pods_of(key) if revision_label(pod) == revision]
        return await self._refused.look(key, workload, pods)

    def _revision_of(self, key: ObjectKey) -> str:
        """The new revision of the pair; empty if there is none."""
        newest = self._specs.parsed(key)
        return "" if newest is None or newest.canary is None else revision_of(newest.canary)

    def _plan(self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource, facts: RevisionFacts | None) -> PairPlan:
        return reconcile_pair(self._observe(key, raw, parsed, facts), self._clock())

    def _observe(
        self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource, facts: RevisionFacts | None
    ) -> Observed:
        pair_key = parsed.pair_key or ""
        deployment = self._refused.told(key, self._cache.workload_of(key, raw["metadata"]["uid"]))
        policy = self._specs.policy_in_force(pair_key)
        policy_raw = None if policy is None else self._cache.get(policy)
        status, pods, uid = self._statuses.prior(raw), self._cache.pods_of(key), raw["metadata"]["uid"]
        revision = self._revision_of(key)
        new = None if not revision else self._cache.workload_of(key, uid, revision=revision)
        return Observed(
            raw={**raw, "status": status},
            last_good=self._specs.last_good(key),
            problems=self._specs.resolution.problems.get(str(key), ()),
            ignored=parsed.ignored,
            rejected=self._rejected.get(key, ()),
            deployment=deployment,
            pods=tuple(pod for pod in pods if not revision_label(pod)),
            policy=None if policy_raw is None else read_status(policy_raw.get("status"), SpeculationPolicyStatus),
            policy_killed=bool(self._specs.killed_policies(pair_key)),
            gateways=self._gateways.status_of(key, raw["metadata"].get("generation", 0), raw["metadata"].get("uid")),
            withheld=self._gateways.withheld_of(key),
            unreachable=self._gateways.unreachable_of(key),
            last_request=self._gateways.last_request_of(key),
            demand=self._gateways.demand_of(key),
            name=self._specs.name_claim(key),
            canary=ObservedCanary(
                deployment=self._refused.told(key, new),
                pods=tuple(pod for pod in pods if revision and revision_label(pod) == revision),
                facts=facts,
                checks=self._checks.results(key),
            ),
            defaults=self._defaults,
        )

    def _facts(self, key: ObjectKey, status: KubeObject) -> RevisionFacts | None:
        """The evidence about a new revision, while it is compared with the serving one and its checks are polled."""
        found, newest = canary_status_of(status), self._specs.parsed(key)
        new = None if newest is None else newest.canary
        canary = None if new is None else canary_of(new)
        if found is None or canary is None or found.phase is not CanaryPhase.COMPARING:
            self._evidence.end_comparison(key)
            self._checks.end(key)
            return None
        self._checks.follow(key, found, canary.checks)
        return self._evidence.compare(key, found, canary)
