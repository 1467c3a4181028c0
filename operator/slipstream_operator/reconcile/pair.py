"""What a ModelPair comes to: its children, its status, and what people should hear of. Pure.

`RolledBack` and `AnalysisConclusive` are conditions of the SpeculationPolicy alone. A pair's `state` says when its
policy has rolled back a class, so that one look at the pair tells where to look next.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from slipstream_gateway.manifest.check import Problem
from slipstream_gateway.manifest.last_good import GoodVersion, good_version, to_keep
from slipstream_gateway.manifest.objects import ModelPair
from slipstream_gateway.manifest.renames import Rename, held_back, waiting_rename
from slipstream_gateway.manifest.resources import ParsedResource, parse_resource
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
from slipstream_operator.reconcile.usage import Usage, name_in_use, usage_of
from slipstream_operator.reconcile.verdicts import PairReason, Verdict
from slipstream_operator.reconcile.withheld import speculation_available


def reconcile_pair(observed: Observed, now: datetime) -> PairPlan:
    """The plan for one pair. `now` has a time zone.

    While the spec is broken, the last good one counts. The children stay as they are then, and where another pair has
    what this one claims.
    """
    prior = prior_status(observed.raw)
    usage = usage_of(prior, observed.last_request, now)
    parsed, judged, rename = _newest(observed.raw, usage)
    good = good_version(observed.raw, parsed, observed.last_good)
    pair = good.parsed.item if good is not None and isinstance(good.parsed.item, ModelPair) else None
    problems = observed.problems or parsed.problems
    if pair is not None:  # nothing in the newest spec is wrong with the one that counts
        problems = tuple(problem for problem in problems if problem not in judged.problems)
    ignored = observed.ignored or parsed.ignored
    generation = _generation(observed.raw)
    replicas = verdicts.replicas_of(pair, observed.deployment)
    conditions = Conditions(prior.conditions, generation, now)
    conditions.set(ConditionType.ACCEPTED, *_accepted(parsed, good, rename, usage))
    served_generation = generation if good is None else good.generation
    for type, verdict in _verdicts(
        pair, observed, problems, replicas, prior, killed=parsed.killed, generation=served_generation
    ).items():
        conditions.set(type, *(_with_ignored(verdict, ignored) if type is ConditionType.READY else verdict))
    status = _status(observed, generation, replicas, conditions.all)
    status = msgspec.structs.replace(
        status, last_good=to_keep(good), last_request_time=usage.last_request_time, in_use=usage.in_use
    )
    notes = pair_notes(prior, status, ignored=ignored)
    if rename is not None and not usage.in_use:  # it counts from now on, and is judged beside the others next
        return PairPlan(children=None, status=status, notes=notes, next_look_s=0.0)
    children = None if pair is None or problems or parsed.item is None else _children(pair, observed)
    return PairPlan(children=children, status=status, notes=notes, next_look_s=usage.next_look_s)


class _Newest(NamedTuple):
    """The newest version: `parsed` as it counts now, `judged` as it was held against the other objects, with a `rename`
    that nobody had accepted by then."""

    parsed: ParsedResource
    judged: ParsedResource
    rename: Rename | None


def _newest(raw: KubeObject, usage: Usage) -> _Newest:
    parsed = parse_resource(raw)
    rename = waiting_rename(raw, parsed)
    judged = parsed if rename is None else held_back(parsed, rename)
    return _Newest(judged if usage.in_use else parsed, judged, rename)


def _accepted(newest: ParsedResource, good: GoodVersion | None, rename: Rename | None, usage: Usage) -> Verdict:
    if rename is not None and usage.in_use:
        return Verdict("False", PairReason.MODEL_NAME_IN_USE, name_in_use(rename, usage))
    return verdicts.accepted(newest.problems, good)


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
    (ConditionType.ACCEPTED, "False", "NotAccepted"),
    (ConditionType.RESOLVED_REFS, "False", "Unresolved"),
    (ConditionType.READY, "False", "NotReady"),
    (ConditionType.TOKENIZER_COMPATIBLE, "False", "Incompatible"),
    (ConditionType.SPECULATION_AVAILABLE, "False", "Degraded"),
)

_STUCK = frozenset({PairReason.CHILDREN_REJECTED, PairReason.DEADLINE_EXCEEDED})


def headline(conditions: Sequence[Condition], policy: SpeculationPolicyStatus) -> tuple[str, str]:
    """State and reason: of what is wrong, the worst; of a pair that is well, what it is doing.

    Killed, Invalid, NotAccepted (the newest spec is not: the one before is served), Unresolved, NotReady, Incompatible
    (the target alone is served), Degraded (servers answer, but some of them may not speculate), RolledBack (classes
    are, see the policy), Rolling, Stuck (the rollout, while older servers serve), Ready.
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
