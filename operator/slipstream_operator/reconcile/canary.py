"""A new revision of a pair that is compared with the serving one: its state and its children. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.naming import APPROVE, CANARY_PREFIX
from slipstream_core.manifest.revision import canary_of, revision_of
from slipstream_core.manifest.serving import Canary
from slipstream_core.manifest.status import CanaryPhase, CanaryStatus, ModelPairStatus
from slipstream_core.manifest.versions import Comparison

from slipstream_operator.children.all import children_of, lacks_kind
from slipstream_operator.children.repository import weights_hash
from slipstream_operator.children.workload import progress_deadline_s
from slipstream_operator.reconcile.annotations import annotations_of
from slipstream_operator.reconcile.pods import PodReason, preflight_report, restarts, worst_problem
from slipstream_operator.reconcile.servers import count, with_serving
from slipstream_operator.rollout.canary import CanaryCase, CanaryServers, advance, look_again_s
from slipstream_operator.types import KubeObject, Observed

_CRASHES = frozenset(
    {PodReason.CRASH_LOOP, PodReason.OUT_OF_MEMORY, PodReason.PREFLIGHT_FAILED, PodReason.TOKENIZER_MISMATCH}
)
_MOST_RESTARTS = 2
_RUNNING = frozenset({CanaryPhase.STARTING, CanaryPhase.COMPARING})


class NewRevision(NamedTuple):
    """A new revision: the pair of the newest spec, its state, and the seconds until the next look without an event.
    `is_decided_now`: its end is not stored yet."""

    pair: ModelPair
    status: CanaryStatus
    next_look_s: float | None
    is_decided_now: bool

    @property
    def is_promoted(self) -> bool:
        return self.status.phase is CanaryPhase.PROMOTED


def new_revision(comparison: Comparison, prior: ModelPairStatus, observed: Observed, now: datetime) -> NewRevision:
    """The state of the new revision in `comparison`."""
    pair = comparison.new
    case = CanaryCase(
        revision=revision_of(pair),
        serving=revision_of(comparison.serving),
        canary=canary_of(pair) or Canary(),
        servers=_servers(pair, observed),
        facts=observed.canary.facts,
        has_same_target=pair.spec.target == comparison.serving.spec.target,
        now=now,
        served=prior.served,
        checks=observed.canary.checks,
        approved=annotations_of(observed.raw).get(APPROVE, ""),
    )
    status = advance(prior.canary, case)
    is_decided_now = status.phase not in _RUNNING and status != prior.canary
    # Evidence and checks are those of a comparison that has begun, so a look is due when it begins.
    begins = status.phase is CanaryPhase.COMPARING and (prior.canary is None or prior.canary.phase is not status.phase)
    next_look_s = 0.0 if is_decided_now or begins else look_again_s(status, case)
    return NewRevision(pair, status, next_look_s, is_decided_now)


def _servers(pair: ModelPair, observed: Observed) -> CanaryServers:
    """The servers of both revisions; `pair` has the new one."""
    trouble, is_hopeless = _trouble(pair, observed)
    return CanaryServers(
        ready=count(observed.canary.deployment or {}, "status", "readyReplicas"),
        serving_ready=count(observed.deployment or {}, "status", "readyReplicas"),
        trouble=trouble,
        is_hopeless=is_hopeless,
        start_s=progress_deadline_s(pair.serving),
    )


def _trouble(pair: ModelPair, observed: Observed) -> tuple[str, bool]:
    """Why the servers do not start, empty if nothing is known, and whether they never will."""
    if lacks_kind(pair, observed.defaults):
        return "servers of several nodes need the kind LeaderWorkerSet, which the cluster lacks", True
    pods = observed.canary.pods
    report = preflight_report(pods, weights_hash(pair))
    if report is not None and report.tokenizer_compatible is False:
        return report.message, True
    problem = worst_problem(pods, observed.canary.deployment)
    if problem is None:
        return "; ".join(str(one) for one in observed.rejected if f"/{CANARY_PREFIX}" in one.path), False
    return problem.message, problem.reason in _CRASHES and restarts(pods) >= _MOST_RESTARTS


def serving_pair(pair: ModelPair, new: ModelPair) -> ModelPair:
    """The serving version of a pair with the number of servers in its newest spec, unless an autoscaler of one of them
    has it."""
    if pair.serving.autoscaling is not None or new.serving.autoscaling is not None:
        return pair
    return with_serving(pair, replicas=new.serving.replicas)


def canary_children(new: NewRevision, serving: ModelPair, observed: Observed) -> tuple[KubeObject, ...]:
    """The children of the new revision; none where its servers do not run (any more). While the serving pair has no
    servers, neither has the new revision."""
    if new.status.phase not in _RUNNING:
        return ()
    canary = canary_of(new.pair) or Canary()
    number = 0 if serving.serving.replicas == 0 else canary.replicas
    pair = with_serving(new.pair, replicas=number, autoscaling=None)
    uid = observed.raw["metadata"]["uid"]
    return children_of(pair, uid=uid, defaults=observed.defaults, live=observed.canary.deployment, canary=True)
