"""The handler of SpeculationPolicies: collect pair and evidence, decide, write status and Events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec
from slipstream_core.manifest.objects import SpeculationPolicy
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.status import ConditionType, ModelPairStatus, SpeculationPolicyStatus
from slipstream_core.manifest.versions import GoodVersion

from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.gateway_reports import GatewayReports
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.cluster.workload import workload_of
from slipstream_operator.handlers.pairs import read_status
from slipstream_operator.reconcile.servers import Servers, servers_of, template_seen
from slipstream_operator.status.events import EventPoster
from slipstream_operator.status.writer import StatusWriter
from slipstream_operator.types import KubeObject, Note, PolicyPlan


class PolicyDecision(Protocol):
    """`reconcile.policy.reconcile_policy`."""

    def __call__(
        self,
        raw: KubeObject,
        *,
        last_good: GoodVersion | None,
        problems: tuple[Any, ...],
        ignored: tuple[str, ...],
        pair: Any,
        pair_ready: bool,
        pair_killed: bool,
        prior: SpeculationPolicyStatus | None,
        evidence: Mapping[str, Any],
        store_connected: bool,
        gateways: Any,
        now: datetime,
        servers_current: bool,
    ) -> PolicyPlan: ...


class Evidence(Protocol):
    """Measurements by policy: `rollout.evidence.CollectedEvidence`."""

    def open(
        self, key: ObjectKey, policy: SpeculationPolicy | None, *, pair_key: str, checkpoint: str, created: str = ""
    ) -> Note | None:
        """Restore from `checkpoint` if this policy is new. Otherwise only store its spec, if it is valid. Returns a
        note if the checkpoint cannot be read."""

    def is_connected(self, key: ObjectKey) -> bool:
        """Whether the facts are complete."""

    def facts(self, key: ObjectKey) -> Mapping[str, Any]:
        """The facts of each known class; empty for a policy that was not opened."""

    def take_notes(self, key: ObjectKey) -> tuple[Note, ...]:
        """The notes about drafts that have become worse since the last call."""

    def checkpoint(self, key: ObjectKey, status: SpeculationPolicyStatus, *, paused: bool = False) -> str:
        """The text from which `open` restores this evidence and `status`; empty for a policy that was not opened.
        `follow` must be called with the same arguments."""

    def follow(self, key: ObjectKey, status: SpeculationPolicyStatus, *, paused: bool = False) -> None:
        """Set the status in force, which is stored. While `paused`, outcomes are no evidence."""

    def close(self, key: ObjectKey) -> None:
        """Drop the evidence of a policy that was deleted, or is not in force."""


class PolicyReconciler:
    """Reconciles SpeculationPolicies with the plans of `decide`."""

    def __init__(
        self,
        *,
        decide: PolicyDecision,
        cache: ObjectCache,
        specs: SpecIndex,
        gateways: GatewayReports,
        evidence: Evidence,
        statuses: StatusWriter,
        events: EventPoster,
        clock: Callable[[], datetime],
    ) -> None:
        self._decide, self._clock, self._evidence = decide, clock, evidence
        self._cache, self._specs, self._gateways = cache, specs, gateways
        self._statuses, self._events = statuses, events
        self._templates: dict[ObjectKey, object] = {}  # the last pod templates that the Deployments' controller saw

    async def reconcile(self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource) -> float | None:
        """Reconcile one policy. Returns the seconds until the next reconcile without an event.

        Raises:
            KubeError: to be retried.
        """
        prior = read_status(self._statuses.prior(raw), SpeculationPolicyStatus)
        lost = self._open_evidence(key, raw, parsed, prior)
        if lost is not None:
            self._events.post(raw, (lost,))
        servers = self._servers(key, parsed.pair_key or "")
        paused = not servers.counted
        plan = self._plan(key, raw, parsed, prior, servers)

        def seal(status: SpeculationPolicyStatus) -> SpeculationPolicyStatus:
            checkpoint = self._evidence.checkpoint(key, status, paused=paused)
            kept = prior.checkpoint if prior is not None else ""
            return msgspec.structs.replace(status, checkpoint=checkpoint or kept)

        waits_s = await self._statuses.write(raw, plan.status, seal=seal)
        self._evidence.follow(key, plan.status, paused=paused)
        if waits_s is None:
            self._events.post(raw, (*plan.notes, *self._evidence.take_notes(key)))
        return min((s for s in (waits_s, plan.next_look_s) if s is not None), default=None)

    def forget(self, key: ObjectKey) -> None:
        self._evidence.close(key)
        self._statuses.forget(key)
        self._templates.pop(key, None)

    def _open_evidence(
        self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource, prior: SpeculationPolicyStatus | None
    ) -> Note | None:
        pair_key = parsed.pair_key
        if pair_key is None:
            return None  # With an invalid spec, gateways keep the last good version, which stays guarded.
        if self._specs.policy_at_work(pair_key) != key:
            self._evidence.close(key)
            return None
        return self._evidence.open(
            key,
            parsed.item if isinstance(parsed.item, SpeculationPolicy) else None,
            pair_key=pair_key,
            checkpoint=prior.checkpoint if prior is not None else "",
            created=raw["metadata"].get("creationTimestamp") or "",
        )

    def _plan(
        self,
        key: ObjectKey,
        raw: KubeObject,
        parsed: ParsedResource,
        prior: SpeculationPolicyStatus | None,
        servers: Servers,
    ) -> PolicyPlan:
        resolution, pair_key = self._specs.resolution, parsed.pair_key or ""
        pair = resolution.pairs.get(pair_key)
        return self._decide(
            raw,
            last_good=self._specs.last_good(key),
            problems=resolution.problems.get(str(key), ()),
            ignored=parsed.ignored,
            pair=pair,
            pair_ready=self._is_ready(pair_key),
            pair_killed=self._is_pair_killed(key, pair_key),
            prior=prior,
            evidence=self._evidence.facts(key),
            store_connected=self._evidence.is_connected(key),
            gateways=self._gateways.status_of(key, raw["metadata"].get("generation", 0), raw["metadata"].get("uid")),
            now=self._clock(),
            servers_current=servers.current,
        )

    def _is_pair_killed(self, key: ObjectKey, pair_key: str) -> bool:
        """Whether a kill switch other than this policy's own is on for the pair."""
        others = (self._specs.parsed(other) for other in self._specs.related(pair_key) if other != key)
        return any(parsed.killed for parsed in others if parsed is not None)

    def _is_ready(self, pair_key: str) -> bool:
        raw = self._cache.get(_pair(pair_key))
        status = read_status(raw.get("status"), ModelPairStatus) if raw is not None else None
        if status is None:
            return False
        return any(entry.type == ConditionType.READY and entry.status == "True" for entry in status.conditions)

    def _servers(self, key: ObjectKey, pair_key: str) -> Servers:
        pair = _pair(pair_key)
        raw = self._cache.get(pair)
        if raw is None:
            return Servers()
        deployment = workload_of(self._cache, pair, raw["metadata"]["uid"])
        if deployment is not None and (template := template_seen(deployment)) is not None:
            self._templates[key] = template
        status = read_status(raw.get("status"), ModelPairStatus)
        return servers_of(raw, status, deployment, template=self._templates.get(key))


def _pair(pair_key: str) -> ObjectKey:
    namespace, _, name = pair_key.rpartition("/")
    return ObjectKey(Kind.MODEL_PAIR, namespace, name)
