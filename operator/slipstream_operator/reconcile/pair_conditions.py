"""The conditions of a pair, with their reasons, as one value per condition."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.manifest.grants import API_KEY_FIELD, is_foreign_name
from slipstream_core.manifest.naming import CANARY_PREFIX
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.reports import UnreachableServers
from slipstream_core.manifest.status import (
    CanaryPhase,
    CanaryStatus,
    Condition,
    ConditionStatus,
    GatewaysStatus,
    Replicas,
)
from slipstream_core.manifest.versions import GoodVersion, to_keep

from slipstream_operator.children.all import has_servers, is_group, lacks_kind, missing_kinds
from slipstream_operator.children.hashes import weights_hash
from slipstream_operator.children.preflight import has_draft_model
from slipstream_operator.reconcile.pods import PodProblem, PodReason, contents, preflight_report
from slipstream_operator.types import KubeObject, Observed

_MAX_LISTED = 5
_ELSEWHERE = "the pair names external servers"


class PairReason(StrEnum):
    """The reasons of a pair's conditions, in addition to those of `PodReason`.

    `Accepted`: Accepted (True); InvalidSpec, ModelNameInUse, ComparingRevision, RevisionRolledBack (False).
    `Ready`: MinimumReplicasReady, Idle and External (True); InvalidSpec, ModelNameTaken, ModelNameNotGranted,
    ApiKeyNotGranted, Unresolved, NotManaged, KindMissing, EndpointsUnreachable, ChildrenRejected, ScaledToZero,
    NoReadyReplicas, or a pod's reason (False).
    `ResolvedRefs`: Resolved (True); InvalidSpec, ModelNameTaken, ModelNameNotGranted, ApiKeyNotGranted, Unresolved,
    ClaimNotFound (False).
    `TokenizerCompatible`: SameTokenizer and NoDraftModel (True); TokenizerMismatch (False); NotChecked (Unknown).
    `SpeculationAvailable`: AllServers (True); EngineNotLossless, EngineCannot (False); EngineUnverified, NoGateway
    (Unknown).
    `Progressing`: RollingOut (True); Complete, External, NotManaged, KindMissing, InvalidSpec, ChildrenRejected,
    DeadlineExceeded (False).
    `KillSwitchActive`: Killed and KilledEverywhere (True); NotKilled (False).
    """

    ACCEPTED = "Accepted"
    MINIMUM_REPLICAS_READY = "MinimumReplicasReady"
    EXTERNAL = "External"
    NOT_MANAGED = "NotManaged"
    KIND_MISSING = "KindMissing"
    ENDPOINTS_UNREACHABLE = "EndpointsUnreachable"
    INVALID_SPEC = "InvalidSpec"
    MODEL_NAME_IN_USE = "ModelNameInUse"
    COMPARING_REVISION = "ComparingRevision"
    REVISION_ROLLED_BACK = "RevisionRolledBack"
    MODEL_NAME_TAKEN = "ModelNameTaken"
    MODEL_NAME_NOT_GRANTED = "ModelNameNotGranted"
    API_KEY_NOT_GRANTED = "ApiKeyNotGranted"
    UNRESOLVED = "Unresolved"
    CHILDREN_REJECTED = "ChildrenRejected"
    SCALED_TO_ZERO = "ScaledToZero"
    IDLE = "Idle"
    NO_READY_REPLICAS = "NoReadyReplicas"
    RESOLVED = "Resolved"
    SAME_TOKENIZER = "SameTokenizer"
    NO_DRAFT_MODEL = "NoDraftModel"
    TOKENIZER_MISMATCH = "TokenizerMismatch"
    NOT_CHECKED = "NotChecked"
    ALL_SERVERS = "AllServers"
    ENGINE_NOT_LOSSLESS = "EngineNotLossless"
    ENGINE_CANNOT = "EngineCannot"
    ENGINE_UNVERIFIED = "EngineUnverified"
    NO_GATEWAY = "NoGateway"
    ROLLING_OUT = "RollingOut"
    COMPLETE = "Complete"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    KILLED = "Killed"
    KILLED_EVERYWHERE = "KilledEverywhere"
    NOT_KILLED = "NotKilled"


class Finding(NamedTuple):
    """One condition's content."""

    status: ConditionStatus
    reason: str
    message: str


def listed(problems: Sequence[Problem]) -> str:
    """Problems on one line, the first few of them."""
    shown = "; ".join(str(problem) for problem in problems[:_MAX_LISTED])
    more = len(problems) - _MAX_LISTED
    return f"{shown}; and {more} more" if more > 0 else shown


def replicas_of(pair: ModelPair | None, live: KubeObject | None) -> Replicas:
    """The ready and the desired number of servers of the Deployment."""
    if pair is not None and not has_servers(pair):
        return Replicas()
    if live is None:
        asked = pair.spec.serving.replicas if pair is not None and pair.spec.serving is not None else None
        return Replicas(desired=1 if asked is None and pair is not None else asked or 0)
    return Replicas(
        ready=count(live, "status", "readyReplicas"),
        desired=count(live, "spec", "replicas"),
        current=count(live, "status", "replicas"),
    )


def accepted(problems: Sequence[Problem], good: GoodVersion | None) -> Finding:
    """Whether the newest spec is valid. `problems` are its own, `good` is the last version without problems."""
    if not problems:
        is_large = good is not None and to_keep(good) is None
        large = ", but too large to be stored in the status as the last good version" if is_large else ""
        return Finding("True", PairReason.ACCEPTED, f"the spec is valid{large}")
    in_use = "no earlier valid version is known" if good is None else f"generation {good.generation} stays in use"
    return Finding("False", PairReason.INVALID_SPEC, f"{listed(problems)}. The spec is not used: {in_use}")


def compared(new: CanaryStatus) -> Finding:
    """Why the newest spec is not in effect: its revision is compared with the serving one, or was rolled back."""
    is_over = new.phase is CanaryPhase.ROLLED_BACK
    reason = PairReason.REVISION_ROLLED_BACK if is_over else PairReason.COMPARING_REVISION
    return Finding("False", reason, f"revision {new.revision}: {new.message}")


def ready(
    pair: ModelPair | None, observed: Observed, problems: Sequence[Problem], replicas: Replicas, pod: PodProblem | None
) -> Finding:
    """Whether the pair can be served. `pair` is None without a valid spec; `problems` are its errors."""
    servers = f"{replicas.ready} of {replicas.desired} servers are ready"
    if pair is None:
        return Finding("False", PairReason.INVALID_SPEC, f"{listed(problems)}. The servers are unchanged: {servers}")
    if problems:
        return Finding("False", unresolved_reason(problems), listed(problems))
    if not has_servers(pair):
        return _not_managed(pair) or _external(observed.unreachable)
    if missing := _kind_missing(pair, observed):
        return missing
    rejected = listed(_rejected(observed))
    parts = (rejected, pod.message if pod is not None else "", _without_pool(pair, observed))
    trouble = "; ".join(part for part in parts if part)
    message = f"{servers}; {trouble}" if trouble else servers
    if replicas.ready > 0:
        return Finding("True", PairReason.MINIMUM_REPLICAS_READY, message)
    if rejected:
        return Finding("False", PairReason.CHILDREN_REJECTED, message)
    if observed.deployment is not None and replicas.desired == 0:
        return _without_servers(pair)
    return Finding("False", pod.reason if pod is not None else PairReason.NO_READY_REPLICAS, message)


def _without_servers(pair: ModelPair) -> Finding:
    if pair.spec.serving is not None and pair.spec.serving.scales_to_zero:
        return Finding("True", PairReason.IDLE, "no server runs: the next request starts one")
    return Finding("False", PairReason.SCALED_TO_ZERO, "replicas is 0: no server runs")


def resolved_refs(
    pair: ModelPair | None, problems: Sequence[Problem], pods: Sequence[KubeObject], pod: PodProblem | None
) -> Finding:
    """Whether all references of the pair exist, and no other pair has a name or claim of this one."""
    if pair is None:
        return Finding("False", PairReason.INVALID_SPEC, "the spec is invalid, see Ready")
    if problems:
        return Finding("False", unresolved_reason(problems), listed(problems))
    if pod is not None and pod.reason is PodReason.CLAIM_NOT_FOUND:
        return Finding("False", pod.reason, pod.message)
    known = "; ".join(["everything that the pair refers to exists", *contents(pods, weights_hash(pair))])
    return Finding("True", PairReason.RESOLVED, known)


def tokenizer_compatible(
    pair: ModelPair | None, pods: Sequence[KubeObject], prior: Condition | None, generation: int
) -> Finding:
    """Whether the draft uses the target's token ids. Servers check it before they load any weights.

    The result for this spec, of `generation`, stays when the pod with the result no longer exists. Newer generations
    are not usable.
    """
    if pair is None or not has_servers(pair):
        return Finding("Unknown", PairReason.NOT_CHECKED, "the tokenizers of external servers are not compared")
    if not has_draft_model(pair):
        return Finding("True", PairReason.NO_DRAFT_MODEL, "the pair has no draft model, so there is only one tokenizer")
    report = preflight_report(pods, weights_hash(pair))
    if report is not None and report.tokenizer_compatible is None:
        return Finding("Unknown", PairReason.NOT_CHECKED, report.message)
    if report is not None and report.tokenizer_compatible:
        return Finding("True", PairReason.SAME_TOKENIZER, report.message)
    if report is not None:
        is_vllm = isinstance(pair.spec.engine, VllmEngine)
        effect = "The server does not start" if is_vllm else "The target is served without speculation"
        return Finding("False", PairReason.TOKENIZER_MISMATCH, f"{report.message}. {effect}")
    if prior is not None and prior.observed_generation >= generation:
        return Finding(prior.status, prior.reason, prior.message)
    return Finding("Unknown", PairReason.NOT_CHECKED, "no server has compared the tokenizers yet")


def progressing(
    pair: ModelPair | None, observed: Observed, replicas: Replicas, pod: PodProblem | None, *, is_late: bool
) -> Finding:
    """Whether the servers are being updated to this spec. `is_late`: the deadline of an update of groups is over."""
    if pair is None:
        return Finding("False", PairReason.INVALID_SPEC, "nothing changes while the spec is invalid")
    if not has_servers(pair):
        return _not_managed(pair) or Finding("False", PairReason.EXTERNAL, _ELSEWHERE)
    if missing := _kind_missing(pair, observed):
        return missing
    if rejected := _rejected(observed):
        return Finding("False", PairReason.CHILDREN_REJECTED, listed(rejected))
    if observed.deployment is None:
        kind = "LeaderWorkerSet" if is_group(pair) else "Deployment"
        return Finding("True", PairReason.ROLLING_OUT, f"the {kind} of the servers is being created")
    updated = count(observed.deployment, "status", "updatedReplicas")
    available = count(observed.deployment, "status", "availableReplicas")
    trouble = f"; {pod.message}" if pod is not None else ""
    message = f"{updated} of {replicas.desired} servers have this spec, {available} are available{trouble}"
    if deadline_exceeded(observed.deployment):
        return Finding("False", PairReason.DEADLINE_EXCEEDED, message)
    if _is_complete(observed.deployment, replicas.desired):
        return Finding("False", PairReason.COMPLETE, f"all {replicas.desired} servers have this spec")
    if is_late:
        return Finding("False", PairReason.DEADLINE_EXCEEDED, message)
    return Finding("True", PairReason.ROLLING_OUT, message)


def _rejected(observed: Observed) -> list[Problem]:
    """The rejected children of the serving revision."""
    return [problem for problem in observed.rejected if f"/{CANARY_PREFIX}" not in problem.path]


def _not_managed(pair: ModelPair) -> Finding | None:
    """The finding for a pair of vLLM that names no servers, and that the operator cannot run either."""
    engine = pair.spec.engine
    if not isinstance(engine, VllmEngine) or engine.endpoints:
        return None
    if engine.serving == "triton":
        message = "in a cluster vLLM is run by its own HTTP server only: set spec.engine.serving to openai"
    else:
        message = "embedded: sources are for a laptop, images of vLLM lack them: name a folder of spec.serving.storage"
    return Finding("False", PairReason.NOT_MANAGED, message)


def _kind_missing(pair: ModelPair, observed: Observed) -> Finding | None:
    if not lacks_kind(pair, observed.defaults):
        return None
    message = (
        "servers of several nodes need the kind LeaderWorkerSet (leaderworkerset.x-k8s.io/v1), which this cluster did "
        "not have when the operator started: install it and restart the operator, or set spec.serving.nodes to 1"
    )
    return Finding("False", PairReason.KIND_MISSING, message)


def _without_pool(pair: ModelPair, observed: Observed) -> str:
    """What `serving.inferencePool` lacks; empty if nothing."""
    kinds = missing_kinds(pair, observed.defaults)
    if not kinds:
        return ""
    return (
        f"spec.serving.inferencePool has no effect: this cluster had no kind {' and '.join(kinds)} when the operator "
        "started"
    )


def _external(reports: Sequence[UnreachableServers | None]) -> Finding:
    """Whether external servers answer the gateways that probed them. One server that answers one gateway is enough."""
    lost = [report for report in reports if report is not None]
    if not lost:
        return Finding("True", PairReason.EXTERNAL, _ELSEWHERE)
    servers = ", ".join(sorted({server for report in lost for server in report.servers})[:_MAX_LISTED])
    most = max(report.unreachable for report in lost)
    seen = f"{len(lost)} of {len(reports)} gateways cannot reach up to {most} of {lost[0].total} servers: {servers}"
    if len(lost) == len(reports) and all(report.unreachable >= report.total for report in lost):
        return Finding("False", PairReason.ENDPOINTS_UNREACHABLE, f"no gateway reaches any server; {seen}")
    return Finding("True", PairReason.EXTERNAL, f"{_ELSEWHERE}; {seen}")


def kill_switch(*, own: bool, policy: bool, gateways: GatewaysStatus, of_policy: GatewaysStatus | None) -> Finding:
    """Whether a kill switch is on: the pair's `own`, or that of a `policy`.

    `gateways` counts the gateways that apply the pair, and `of_policy` those that apply the killed policy, None if it
    is not in force. If both kill switches are on, only the gateways that apply the pair count.
    """
    if not own and not policy:
        return Finding("False", PairReason.NOT_KILLED, "no kill switch is on")
    whose = " and ".join(name for name, on in (("the pair", own), ("its SpeculationPolicy", policy)) if on)
    counted = gateways if own else of_policy or GatewaysStatus()
    landed = counted.total > 0 and counted.synced >= counted.total
    seen = f"{counted.synced} of {counted.total} gateways have confirmed it" if counted.total else "no gateway reports"
    reason = PairReason.KILLED_EVERYWHERE if landed else PairReason.KILLED
    return Finding("True", reason, f"the kill switch of {whose} is on: every request decodes plainly; {seen}")


def unresolved_reason(problems: Sequence[Problem]) -> PairReason:
    if any(map(is_foreign_name, problems)):
        return PairReason.MODEL_NAME_NOT_GRANTED
    if any(problem.path.endswith(API_KEY_FIELD) for problem in problems):
        return PairReason.API_KEY_NOT_GRANTED
    taken = any(problem.path == "spec.model" for problem in problems)
    return PairReason.MODEL_NAME_TAKEN if taken else PairReason.UNRESOLVED


def _is_complete(live: KubeObject, desired: int) -> bool:
    """Whether the rollout is complete, by the rules of `kubectl rollout status`."""
    seen = count(live, "status", "observedGeneration") >= count(live, "metadata", "generation")
    counts = [count(live, "status", field) for field in ("updatedReplicas", "availableReplicas", "replicas")]
    return seen and counts == [desired] * 3


def deadline_exceeded(live: KubeObject) -> bool:
    """Whether a Deployment's rollout is stuck."""
    conditions: list[dict[str, Any]] = (live.get("status") or {}).get("conditions") or []
    return any(
        condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded"
        for condition in conditions
    )


def count(live: KubeObject, part: str, field: str) -> int:
    """A number in a Deployment's `part`, 0 where it is missing."""
    value = (live.get(part) or {}).get(field)
    return value if isinstance(value, int) else 0
