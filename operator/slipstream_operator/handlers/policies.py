"""The handler of SpeculationPolicies: collect pair and evidence, decide, write status and Events."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.manifest.status import (
    Condition,
    ConditionType,
    ModelPairStatus,
    SpeculationPolicyStatus,
    read_status,
)

from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.handlers.parts import Parts
from slipstream_operator.reconcile.annotations import unknown_annotations
from slipstream_operator.reconcile.policy import reconcile_policy
from slipstream_operator.reconcile.policy_facts import PolicyFacts
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.reconcile.servers import Servers, servers_of, template_seen
from slipstream_operator.rollout.analysis.checkpoint import sealed_standings
from slipstream_operator.rollout.analysis.facts import ClassMemory
from slipstream_operator.rollout.remembered import readable
from slipstream_operator.status.conditions import find
from slipstream_operator.types import KubeObject, Note


class PolicyReconciler:
    """Reconciles SpeculationPolicies."""

    def __init__(self, parts: Parts) -> None:
        self._cache, self._specs, self._gateways = parts.cache, parts.specs, parts.gateways
        self._evidence, self._archive = parts.evidence, parts.archive
        self._statuses, self._events = parts.statuses, parts.events
        self._clock = parts.clock
        self._sealed: dict[ObjectKey, tuple[tuple[str, str | None], Mapping[str, ClassMemory]]] = {}
        self._templates: dict[ObjectKey, object] = {}  # the last pod templates that the Deployments' controller saw

    async def reconcile(self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource) -> float | None:
        """Reconcile one policy. Returns the seconds until the next reconcile without an event.

        Raises:
            KubeError: to be retried.
        """
        prior = readable(self._statuses.prior(raw))
        lost = await self._open_evidence(key, raw, parsed, prior)
        if lost is not None:
            self._events.post(raw, (lost,))
        servers = self._servers(key, parsed.pair_key or "")
        paused = not servers.counted
        plan = reconcile_policy(self._facts(key, raw, parsed, prior, servers))

        sealed: list[str] = []

        def seal(status: SpeculationPolicyStatus) -> SpeculationPolicyStatus:
            checkpoint = self._evidence.checkpoint(key, status, paused=paused, evidence=False)
            sealed.append(self._evidence.checkpoint(key, status, paused=paused))
            return msgspec.structs.replace(status, checkpoint=checkpoint or prior.checkpoint)

        waits_s = await self._statuses.write(raw, plan.status, seal=seal)
        self._evidence.follow(key, plan.status, paused=paused)
        if waits_s is None:
            self._events.post(raw, (*plan.notes, *self._evidence.take_notes(key)))
            if sealed and sealed[-1]:
                await self._archive.write(raw, sealed[-1])
        return min((s for s in (waits_s, plan.next_look_s) if s is not None), default=None)

    def forget(self, key: ObjectKey) -> None:
        self._archive.forget(key)
        self._evidence.close(key)
        self._statuses.forget(key)
        self._templates.pop(key, None)
        self._sealed.pop(key, None)

    async def _open_evidence(
        self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource, prior: SpeculationPolicyStatus
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
            checkpoint=prior.checkpoint,
            archived="" if self._evidence.is_open(key, pair_key) else await self._archive.read(raw),
            created=raw["metadata"].get("creationTimestamp") or "",
        )

    def _facts(
        self,
        key: ObjectKey,
        raw: KubeObject,
        parsed: ParsedResource,
        prior: SpeculationPolicyStatus,
        servers: Servers,
    ) -> PolicyFacts:
        resolution, pair_key = self._specs.resolution, parsed.pair_key or ""
        generation = int(raw["metadata"].get("generation") or 0)
        ready = self._ready_of(pair_key)
        return PolicyFacts(
            newest=self._specs.parsed(key) or parsed,
            generation=generation,
            now=self._clock(),
            good=self._specs.last_good(key),
            prior=prior,
            sealed=self._sealed_in(key, prior.checkpoint, parsed.pair_key),
            problems=resolution.problems.get(str(key), ()),
            ignored=(*parsed.ignored, *unknown_annotations(raw)),
            pair=resolution.pairs.get(pair_key),
            pair_ready=ready is not None and ready.status == "True",
            pair_at_zero=ready is not None and ready.reason == Reason.SCALED_TO_ZERO,
            pair_killed=self._is_pair_killed(key, pair_key),
            servers_current=servers.current,
            classes=self._evidence.facts(key),
            connected=self._evidence.is_connected(key) if self._evidence.is_open(key, pair_key) else None,
            gateways=self._gateways.status_of(key, generation, raw["metadata"].get("uid")),
        )

    def _sealed_in(self, key: ObjectKey, checkpoint: str, pair_key: str | None) -> Mapping[str, ClassMemory]:
        """`sealed_standings`, which takes milliseconds. Most reconciles have the same checkpoint as the last."""
        known = self._sealed.get(key)
        if known is None or known[0] != (checkpoint, pair_key):
            known = self._sealed[key] = (checkpoint, pair_key), sealed_standings(checkpoint, pair_key)
        return known[1]

    def _is_pair_killed(self, key: ObjectKey, pair_key: str) -> bool:
        """Whether a kill switch other than this policy's own is on for the pair."""
        others = (self._specs.parsed(other) for other in self._specs.related(pair_key) if other != key)
        return any(parsed.killed for parsed in others if parsed is not None)

    def _ready_of(self, pair_key: str) -> Condition | None:
        raw = self._cache.get(_pair(pair_key))
        status = read_status(raw.get("status"), ModelPairStatus) if raw is not None else None
        return None if status is None else find(status.conditions, ConditionType.READY)

    def _servers(self, key: ObjectKey, pair_key: str) -> Servers:
        pair = _pair(pair_key)
        raw = self._cache.get(pair)
        if raw is None:
            return Servers()
        deployment = self._cache.workload_of(pair, raw["metadata"]["uid"])
        if deployment is not None and (template := template_seen(deployment)) is not None:
            self._templates[key] = template
        status = read_status(raw.get("status"), ModelPairStatus)
        return servers_of(raw, status, deployment, template=self._templates.get(key))


def _pair(pair_key: str) -> ObjectKey:
    namespace, _, name = pair_key.rpartition("/")
    return ObjectKey(Kind.MODEL_PAIR, namespace, name)
