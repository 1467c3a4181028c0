"""The conditions of a pair, with their reasons, as one value per condition."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.naming import CANARY_PREFIX
from slipstream_core.manifest.reports import UnreachableServers, WithheldServer
from slipstream_core.manifest.status import CanaryPhase, CanaryStatus, ConditionType, GatewaysStatus, Replicas

from slipstream_operator.children.all import has_servers, lacks_kind, missing_kinds
from slipstream_operator.children.identity import is_group
from slipstream_operator.children.init_containers import has_draft_model
from slipstream_operator.children.repository import weights_hash
from slipstream_operator.reconcile.deadline import group_deadline
from slipstream_operator.reconcile.pair_case import PairCase, unresolved_reason
from slipstream_operator.reconcile.pods import PodProblem, PodReason, contents, preflight_report, worst_problem
from slipstream_operator.reconcile.reasons import Finding, Reason, accepted, listed
from slipstream_operator.reconcile.servers import count, deadline_exceeded, is_complete
from slipstream_operator.reconcile.usage import name_in_use
from slipstream_operator.status.conditions import find
from slipstream_operator.types import Observed

_MAX_NAMED = 5
_ELSEWHERE = "the pair names external servers"
# The worst reason first. A gateway may be newer than the operator: an unknown code also counts against speculation.
_WITHHELD = {
    "kill_switch": Reason.GATEWAY_KILLED,
    "engine_not_lossless": Reason.ENGINE_NOT_LOSSLESS,
    "engine_cannot": Reason.ENGINE_CANNOT,
    "engine_unverified": Reason.ENGINE_UNVERIFIED,
}


def pair_conditions(case: PairCase, replicas: Replicas) -> Iterator[tuple[ConditionType, Finding]]:
    """All conditions, in order."""
    observed = case.observed
    pod = worst_problem(observed.pods, observed.deployment)
    yield ConditionType.ACCEPTED, _accepted(case)
    yield ConditionType.READY, _with_ignored(_ready(case, replicas, pod), case.ignored)
    yield ConditionType.RESOLVED_REFS, _resolved_refs(case, pod)
    yield ConditionType.TOKENIZER_COMPATIBLE, _tokenizer_compatible(case)
    yield ConditionType.SPECULATION_AVAILABLE, _speculation_available(observed.withheld, observed.gateways.total)
    yield ConditionType.PROGRESSING, _progressing(case, replicas, pod)
    yield ConditionType.KILL_SWITCH_ACTIVE, _kill_switch(case)


def _accepted(case: PairCase) -> Finding:
    """Whether the newest spec is in effect, and which annotations do not help it."""
    found = _in_effect(case)
    return found._replace(message=". ".join((found.message, *case.annotations_without_effect)))


def _in_effect(case: PairCase) -> Finding:
    if case.new is not None and not case.new.is_promoted:
        return _compared(case.new.status)
    if case.rename is not None and case.usage.in_use:
        return Reason.MODEL_NAME_IN_USE(name_in_use(case.rename, case.usage))
    return accepted(case.newest.problems, case.good)


def _compared(new: CanaryStatus) -> Finding:
    """Why the newest spec is not in effect: its revision is compared with the serving one, or was rolled back."""
    is_over = new.phase is CanaryPhase.ROLLED_BACK
    reason = Reason.REVISION_ROLLED_BACK if is_over else Reason.COMPARING_REVISION
    return reason(new.revision, new.message)


def _with_ignored(ready: Finding, ignored: Sequence[str]) -> Finding:
    """`ready` with the ignored fields in its message. Fields of a newer version are harmless, but they have no
    effect, and their author should know."""
    if not ignored:
        return ready
    names = ", ".join(ignored)
    return ready._replace(message=f"{ready.message}. Fields that this version does not know are ignored: {names}")


def _ready(case: PairCase, replicas: Replicas, pod: PodProblem | None) -> Finding:
    """Whether the pair can be served."""
    pair, observed, problems = case.pair, case.observed, case.problems
    servers = f"{replicas.ready} of {replicas.desired} servers are ready"
    if pair is None:
        return Reason.INVALID_SPEC(f"{listed(problems)}. The servers are unchanged: {servers}")
    if problems:
        return unresolved_reason(problems)(listed(problems))
    if not has_servers(pair):
        return _not_managed(pair) or _external(observed.unreachable)
    if lacks_kind(pair, observed.defaults):
        return Reason.KIND_MISSING()
    rejected = listed(_rejected(observed))
    lost = _lost_servers(observed.unreachable)
    parts = (rejected, pod.message if pod is not None else "", _without_pool(pair, observed), lost)
    trouble = "; ".join(part for part in parts if part)
    message = f"{servers}; {trouble}" if trouble else servers
    if replicas.ready > 0:
        return (Reason.ENDPOINTS_UNREACHABLE if _are_all_lost(observed.unreachable) else Reason.MINIMUM_REPLICAS_READY)(
            message
        )
    if rejected:
        return Reason.CHILDREN_REJECTED(message)
    if observed.deployment is not None and replicas.desired == 0:
        return Reason.IDLE() if pair.serving.scales_to_zero else Reason.SCALED_TO_ZERO()
    return Reason.NO_READY_REPLICAS(message) if pod is None else Finding("False", pod.reason, message)


def _resolved_refs(case: PairCase, pod: PodProblem | None) -> Finding:
    """Whether all references of the pair exist, and no other pair has a name or claim of this one."""
    if case.pair is None:
        return Reason.INVALID_SPEC("the spec is invalid, see Ready")
    if case.problems:
        return unresolved_reason(case.problems)(listed(case.problems))
    if pod is not None and pod.reason is PodReason.CLAIM_NOT_FOUND:
        return Finding("False", pod.reason, pod.message)
    return Reason.RESOLVED(
        "; ".join(["everything that the pair refers to exists", *contents(case.observed.pods, weights_hash(case.pair))])
    )


def _tokenizer_compatible(case: PairCase) -> Finding:
    """Whether the draft uses the target's token ids. Servers check it before they load any weights.

    The result for the served generation stays when the pod with the result no longer exists. Newer generations are not
    usable.
    """
    pair = case.pair
    if pair is None or not has_servers(pair):
        return Reason.NOT_CHECKED("the tokenizers of external servers are not compared")
    if not has_draft_model(pair):
        return Reason.NO_DRAFT_MODEL()
    report = preflight_report(case.observed.pods, weights_hash(pair))
    if report is not None and report.tokenizer_compatible is None:
        return Reason.NOT_CHECKED(report.message)
    if report is not None and report.tokenizer_compatible:
        return Reason.SAME_TOKENIZER(report.message)
    if report is not None:
        is_vllm = isinstance(pair.spec.engine, VllmEngine)
        effect = "The server does not start" if is_vllm else "The target is served without speculation"
        return Reason.TOKENIZER_MISMATCH(report.message, effect)
    prior = find(case.prior.conditions, ConditionType.TOKENIZER_COMPATIBLE)
    if prior is not None and prior.observed_generation >= case.served_generation:
        return Finding(prior.status, prior.reason, prior.message)
    return Reason.NOT_CHECKED("no server has compared the tokenizers yet")


def _speculation_available(withheld: Iterable[WithheldServer], gateways: int) -> Finding:
    """Whether the servers may speculate, by the gateways' checks of the engines and their own kill switches. `withheld`
    has a server once for each gateway that does not let it speculate, of `gateways` that report."""
    if not gateways:
        return Reason.NO_GATEWAY()
    by_reason: defaultdict[Reason, list[WithheldServer]] = defaultdict(list)
    for server in withheld:
        by_reason[_WITHHELD.get(server.reason, Reason.ENGINE_CANNOT)].append(server)
    for reason in _WITHHELD.values():
        if found := by_reason[reason]:
            return reason(_withheld(found, gateways))
    return Reason.ALL_SERVERS()


def _withheld(found: list[WithheldServer], gateways: int) -> str:
    """The capabilities that cannot be used, by server, with the number of gateways and the detail of the first
    gateway."""
    seen = Counter((one.server, one.capabilities) for one in found)
    details = {(one.server, one.capabilities): one.detail for one in reversed(found)}
    return listed(
        [
            f"{server} may not use {' and '.join(capabilities)} ({count} of {gateways} gateways): "
            f"{details[server, capabilities]}"
            for (server, capabilities), count in sorted(seen.items())
        ]
    )


def _progressing(case: PairCase, replicas: Replicas, pod: PodProblem | None) -> Finding:
    """Whether the servers are being updated to this spec."""
    pair, observed = case.pair, case.observed
    if pair is None:
        return Reason.INVALID_SPEC("nothing changes while the spec is invalid")
    if not has_servers(pair):
        return _not_managed(pair) or Reason.EXTERNAL(_ELSEWHERE)._replace(status="False")
    if lacks_kind(pair, observed.defaults):
        return Reason.KIND_MISSING()
    if rejected := _rejected(observed):
        return Reason.CHILDREN_REJECTED(listed(rejected))
    if observed.deployment is None:
        kind = "LeaderWorkerSet" if is_group(pair) else "Deployment"
        return Reason.ROLLING_OUT(f"the {kind} of the servers is being created")
    updated = count(observed.deployment, "status", "updatedReplicas")
    available = count(observed.deployment, "status", "availableReplicas")
    trouble = f"; {pod.message}" if pod is not None else ""
    message = f"{updated} of {replicas.desired} servers have this spec, {available} are available{trouble}"
    if deadline_exceeded(observed.deployment):
        return Reason.DEADLINE_EXCEEDED(message)
    if is_complete(observed.deployment, replicas.desired):
        return Reason.COMPLETE(f"all {replicas.desired} servers have this spec")
    deadline = group_deadline(case)
    is_late = deadline is not None and case.now >= deadline
    return Reason.DEADLINE_EXCEEDED(message) if is_late else Reason.ROLLING_OUT(message)


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
    return Reason.NOT_MANAGED(message)


def _without_pool(pair: ModelPair, observed: Observed) -> str:
    """What `serving.inferencePool` lacks; empty if nothing."""
    kinds = missing_kinds(pair, observed.defaults)
    if not kinds:
        return ""
    return f"spec.serving.inferencePool has no effect: this cluster has no kind {' and '.join(kinds)}"


def _external(reports: Sequence[UnreachableServers | None]) -> Finding:
    """Whether external servers answer the gateways that probed them."""
    seen = _lost_servers(reports)
    if _are_all_lost(reports):
        return Reason.ENDPOINTS_UNREACHABLE(seen)
    return Reason.EXTERNAL(f"{_ELSEWHERE}; {seen}" if seen else _ELSEWHERE)


def _lost_servers(reports: Sequence[UnreachableServers | None]) -> str:
    """The servers that do not answer gateways; empty if all answer. `reports` has one value for each gateway."""
    lost = [report for report in reports if report is not None]
    if not lost:
        return ""
    servers = ", ".join(sorted({server for report in lost for server in report.servers})[:_MAX_NAMED])
    most = max(report.unreachable for report in lost)
    return f"{len(lost)} of {len(reports)} gateways cannot reach up to {most} of {lost[0].total} servers: {servers}"


def _are_all_lost(reports: Sequence[UnreachableServers | None]) -> bool:
    """Whether no server answers any gateway. One server that answers one gateway is enough."""
    return bool(reports) and all(report is not None and report.unreachable >= report.total for report in reports)


def _kill_switch(case: PairCase) -> Finding:
    """Whether a kill switch is on: the pair's own, or that of a policy.

    The gateways that apply the pair are counted. If only a policy is killed, those that apply it are, if it is in
    force.
    """
    own, policy = case.newest.killed, case.observed.policy
    if not own and not case.observed.policy_killed:
        return Reason.NOT_KILLED()
    on = (("the pair", own), ("its SpeculationPolicy", case.observed.policy_killed))
    whose = " and ".join(name for name, is_on in on if is_on)
    found = find(policy.conditions, ConditionType.KILL_SWITCH_ACTIVE) if policy is not None else None
    is_applied = policy is not None and found is not None and found.status == "True"
    counted = case.observed.gateways if own else policy.gateways if policy and is_applied else GatewaysStatus()
    landed = counted.total > 0 and counted.synced >= counted.total
    seen = f"{counted.synced} of {counted.total} gateways have confirmed it" if counted.total else "no gateway reports"
    reason = Reason.KILLED_EVERYWHERE if landed else Reason.KILLED
    return reason(f"the kill switch of {whose} is on", seen)
