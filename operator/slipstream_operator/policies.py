"""One SpeculationPolicy at a time: its pair, its evidence, what is decided, and what is done about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec
from slipstream_gateway.manifest.objects import SpeculationPolicy
from slipstream_gateway.manifest.resources import ParsedResource
from slipstream_gateway.manifest.status import ConditionType, ModelPairStatus, SpeculationPolicyStatus

from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.events import EventPoster
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.cluster.statuses import StatusWriter
from slipstream_operator.declared import Declared
from slipstream_operator.gateways import Gateways
from slipstream_operator.pairs import read_status
from slipstream_operator.plan import KubeObject, Note, PolicyPlan


class PolicyDecision(Protocol):
    """`reconcile.policy.reconcile_policy`."""

    def __call__(
        self,
        raw: KubeObject,
        *,
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
    ) -> PolicyPlan: ...


class Evidence(Protocol):
    """What was measured, by policy: `evidence.PolicyEvidence`."""

    def open(
        self, key: ObjectKey, policy: SpeculationPolicy, *, pair_key: str, checkpoint: str, created: str = ""
    ) -> Note | None:
        """Go on from `checkpoint` where this policy is not known yet; else only note its spec. The note says that the
        checkpoint cannot be read."""

    def is_connected(self, key: ObjectKey) -> bool:
        """Whether the facts are all there is."""

    def facts(self, key: ObjectKey) -> Mapping[str, Any]:
        """The facts of each class that was seen; empty for a policy that was not opened."""

    def checkpoint(self, key: ObjectKey, status: SpeculationPolicyStatus) -> str:
        """What `open` needs to go on from here and from `status`; empty for a policy that was not opened."""

    def follow(self, key: ObjectKey, status: SpeculationPolicyStatus) -> None:
        """`status` is in force: it was stored, or is as stored."""

    def close(self, key: ObjectKey) -> None:
        """The policy is gone, or is not in force."""


class PolicyReconciler:
    """Brings SpeculationPolicies to what `decide` says of them."""

    def __init__(
        self,
        *,
        decide: PolicyDecision,
        cache: ObjectCache,
        declared: Declared,
        gateways: Gateways,
        evidence: Evidence,
        statuses: StatusWriter,
        events: EventPoster,
        clock: Callable[[], datetime],
    ) -> None:
        self._decide, self._clock, self._evidence = decide, clock, evidence
        self._cache, self._declared, self._gateways = cache, declared, gateways
        self._statuses, self._events = statuses, events

    async def reconcile(self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource) -> float | None:
        """Returns in how many seconds to look again, though nothing happens.

        Raises:
            ApiError: to be tried again.
        """
        prior = read_status(self._statuses.prior(raw), SpeculationPolicyStatus)
        lost = self._open_evidence(key, raw, parsed, prior)
        plan = self._plan(key, raw, parsed, prior)
        checkpoint = self._evidence.checkpoint(key, plan.status) or (prior.checkpoint if prior is not None else "")
        status = msgspec.structs.replace(plan.status, checkpoint=checkpoint)
        figures_due_s = await self._statuses.write(raw, status)
        self._evidence.follow(key, status)
        if figures_due_s is None:
            self._events.post(raw, (*plan.notes, *((lost,) if lost else ())))
        return min((s for s in (figures_due_s, plan.next_look_s) if s is not None), default=None)

    def forget(self, key: ObjectKey) -> None:
        self._evidence.close(key)
        self._statuses.forget(key)

    def _open_evidence(
        self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource, prior: SpeculationPolicyStatus | None
    ) -> Note | None:
        policy, pair_key = parsed.item, parsed.pair_key
        if not isinstance(policy, SpeculationPolicy) or pair_key is None:
            return None  # A version that cannot be read leaves the last good one at work in the gateways, and guarded.
        if self._declared.policy_in_force(pair_key) != key:
            self._evidence.close(key)
            return None
        return self._evidence.open(
            key,
            policy,
            pair_key=pair_key,
            checkpoint=prior.checkpoint if prior is not None else "",
            created=raw["metadata"].get("creationTimestamp") or "",
        )

    def _plan(
        self, key: ObjectKey, raw: KubeObject, parsed: ParsedResource, prior: SpeculationPolicyStatus | None
    ) -> PolicyPlan:
        resolution, pair_key = self._declared.resolution, parsed.pair_key or ""
        pair = resolution.pairs.get(pair_key)
        return self._decide(
            raw,
            problems=resolution.problems.get(str(key), ()),
            ignored=parsed.ignored,
            pair=pair,
            pair_ready=self._is_ready(pair_key),
            pair_killed=self._is_pair_killed(key, pair_key),
            prior=prior,
            evidence=self._evidence.facts(key),
            store_connected=self._evidence.is_connected(key),
            gateways=self._gateways.status_of(key, raw["metadata"].get("generation", 0)),
            now=self._clock(),
        )

    def _is_pair_killed(self, key: ObjectKey, pair_key: str) -> bool:
        """Whether the pair is killed by anything but this policy's own switch."""
        others = (self._declared.parsed(other) for other in self._declared.related(pair_key) if other != key)
        return any(parsed.killed for parsed in others if parsed is not None)

    def _is_ready(self, pair_key: str) -> bool:
        namespace, _, name = pair_key.rpartition("/")
        raw = self._cache.get(ObjectKey(Kind.MODEL_PAIR, namespace, name))
        status = read_status(raw.get("status"), ModelPairStatus) if raw is not None else None
        if status is None:
            return False
        return any(entry.type == ConditionType.READY and entry.status == "True" for entry in status.conditions)
