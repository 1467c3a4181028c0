"""What a ModelPair comes to: its children, its status, and what people should hear of. Pure.

`RolledBack` and `AnalysisConclusive` are conditions of the SpeculationPolicy alone. A pair's `state` says when its
policy has rolled back a class, so that one look at the pair tells where to look next.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from slipstream_gateway.manifest.check import Problem
from slipstream_gateway.manifest.last_good import good_version, to_keep
from slipstream_gateway.manifest.objects import ModelPair
from slipstream_gateway.manifest.resources import parse_resource
from slipstream_gateway.manifest.status import (
    Condition,
    ConditionType,
    GatewaysStatus,
    ModelPairStatus,
    Replicas,
    SpeculationPolicyStatus,
)

from slipstream_operator.children import children_of
from slipstream_operator.conditions import Conditions, find
from slipstream_operator.plan import KubeObject, Observed, PairPlan
from slipstream_operator.reconcile import verdicts
from slipstream_operator.reconcile.pair_notes import pair_notes
from slipstream_operator.reconcile.pods import worst_problem
from slipstream_operator.reconcile.verdicts import PairReason, Verdict
from slipstream_operator.reconcile.withheld import speculation_available


def reconcile_pair(observed: Observed, now: datetime) -> PairPlan:
    """The plan for one pair. `now` has a time zone.

    While the spec is broken, the last good one counts. The children stay as they are then, and where another pair has
    what this one claims.
    """
    parsed = parse_resource(observed.raw)
    good = good_version(observed.raw, parsed, observed.last_good)
    pair = good.parsed.item if good is not None and isinstance(good.parsed.item, ModelPair) else None
    problems = observed.problems or parsed.problems
    if pair is not None:  # nothing in the newest spec is wrong with the one that counts
        problems = tuple(problem for problem in problems if problem not in parsed.problems)
    ignored = observed.ignored or parsed.ignored
    prior = prior_status(observed.raw)
    generation = _generation(observed.raw)
    replicas = verdicts.replicas_of(pair, observed.deployment)
    conditions = Conditions(prior.conditions, generation, now)
    conditions.set(ConditionType.ACCEPTED, *verdicts.accepted(parsed.problems, good))
    served_generation = generation if good is None else good.generation
    for type, verdict in _verdicts(
        pair, observed, problems, replicas, prior, killed=parsed.killed, generation=served_generation
    ).items():
        conditions.set(type, *(_with_ignored(verdict, ignored) if type is ConditionType.READY else verdict))
    status = _status(observed, generation, replicas, conditions.all)
    status = msgspec.structs.replace(status, last_good=to_keep(good))
    children = None if pair is None or problems or parsed.item is None else _children(pair, observed)
    return PairPlan(children=children, status=status, notes=pair_notes(prior, status, ignored=ignored))


def prior_status(raw: KubeObject) -> ModelPairStatus:
    """The pair's last status. One that somebody else wrote, and that cannot be read, counts as none: all of it is made
    anew anyway."""
    try:
        return msgspec.convert(raw.get("status") or {}, ModelPairStatus)
    except msgspec.ValidationError:
        return ModelPairStatus()


def _children(pair: ModelPair, observed: Observed) -> tuple[KubeObject, ...]:
    uid = observed.raw["metadata"]["uid"]
    return children_of(pair, uid=uid, defaults=observed.defaults, live=observed.deployment)


def _verdicts(
    pair: ModelPair | None,
    observed: Observed,
    problems: Sequence[Problem],
    replicas: Replicas,
    prior: ModelPairStatus,
    *,
    killed: bool,
    generation: int,
) -> dict[ConditionType, Verdict]:
    """`generation` is that of `pair`."""
    pod = worst_problem(observed.pods)
    checked = find(prior.conditions, ConditionType.TOKENIZER_COMPATIBLE)
    return {
        ConditionType.READY: verdicts.ready(pair, observed, problems, replicas, pod),
        ConditionType.RESOLVED_REFS: verdicts.resolved_refs(pair, problems, pod),
        ConditionType.TOKENIZER_COMPATIBLE: verdicts.tokenizer_compatible(pair, observed.pods, checked, generation),
        ConditionType.SPECULATION_AVAILABLE: speculation_available(observed.withheld, observed.gateways.total),
        ConditionType.PROGRESSING: verdicts.progressing(pair, observed, replicas, pod),
        ConditionType.KILL_SWITCH_ACTIVE: verdicts.kill_switch(
            own=killed,
            policy=observed.policy_killed,
            gateways=observed.gateways,
            of_policy=_killed_policys(observed.policy),
        ),
    }


def _killed_policys(policy: SpeculationPolicyStatus | None) -> GatewaysStatus | None:
    """How far the policy in force has come, if it is the one with its kill switch on."""
    found = find(policy.conditions, ConditionType.KILL_SWITCH_ACTIVE) if policy is not None else None
    return policy.gateways if policy is not None and found is not None and found.status == "True" else None


def _with_ignored(ready: Verdict, ignored: Sequence[str]) -> Verdict:
    """Fields of a newer version do no harm, but whoever wrote them should know."""
    if not ignored:
        return ready
    return ready._replace(message=f"{ready.message}. This version does not know, and ignores: {', '.join(ignored)}")


def _status(
    observed: Observed, generation: int, replicas: Replicas, conditions: tuple[Condition, ...]
) -> ModelPairStatus:
    policy = observed.policy or SpeculationPolicyStatus()
    state, reason = headline(conditions, policy)
    return ModelPairStatus(
        observed_generation=generation,
        state=state,
        reason=reason,
        speculating=policy.speculating,
        accept=policy.accept,
        p95=policy.p95,
        replicas=replicas,
        gateways=observed.gateways,
        conditions=conditions,
    )


_HEADLINES: tuple[tuple[ConditionType, str, str], ...] = (
    (ConditionType.KILL_SWITCH_ACTIVE, "True", "Killed"),
    (ConditionType.ACCEPTED, "False", "Invalid"),
    (ConditionType.RESOLVED_REFS, "False", "Unresolved"),
    (ConditionType.READY, "False", "NotReady"),
    (ConditionType.TOKENIZER_COMPATIBLE, "False", "Incompatible"),
    (ConditionType.SPECULATION_AVAILABLE, "False", "Degraded"),
)

_STUCK = frozenset({PairReason.CHILDREN_REJECTED, PairReason.DEADLINE_EXCEEDED})


def headline(conditions: Sequence[Condition], policy: SpeculationPolicyStatus) -> tuple[str, str]:
    """State and reason: of what is wrong, the worst; of a pair that is well, what it is doing.

    Killed, Invalid, Unresolved, NotReady, Incompatible (the target alone is served), Degraded (servers answer, but some
    of them may not speculate), RolledBack (classes are, see the policy), Rolling, Stuck (the rollout, while older
    servers serve), Ready.
    """
    for type, bad, state in _HEADLINES:
        found = find(conditions, type)
        if found is not None and found.status == bad:
            return ("Invalid" if found.reason == PairReason.INVALID_SPEC else state), found.reason
    taken_back = find(policy.conditions, ConditionType.ROLLED_BACK)
    if taken_back is not None and taken_back.status == "True":
        return "RolledBack", taken_back.reason
    rolling = find(conditions, ConditionType.PROGRESSING)
    if rolling is not None and (rolling.status == "True" or rolling.reason in _STUCK):
        return "Rolling" if rolling.status == "True" else "Stuck", rolling.reason
    ready = find(conditions, ConditionType.READY)
    return "Ready", ready.reason if ready is not None else ""


def _generation(raw: KubeObject) -> int:
    metadata: dict[str, Any] = raw["metadata"]
    return int(metadata.get("generation") or 0)
