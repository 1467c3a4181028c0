"""The plan for a ModelPair: its children, its status and its Events. Pure.

`RolledBack` and `AnalysisConclusive` are conditions of the SpeculationPolicy alone. A pair's `state` is `RolledBack` if
its policy has rolled back a class, so the pair shows where to find the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.resolve import name_taken
from slipstream_core.manifest.revision import revision_of
from slipstream_core.manifest.status import (
    MAX_SERVED,
    CanaryPhase,
    CanaryStatus,
    Condition,
    ConditionType,
    ModelPairStatus,
    NameHolder,
    Replicas,
    SpeculationPolicyStatus,
)
from slipstream_core.manifest.versions import to_keep

from slipstream_operator.children.all import children_of, lacks_kind, selector_of
from slipstream_operator.reconcile.canary import canary_children, serving_pair
from slipstream_operator.reconcile.deadline import group_deadline
from slipstream_operator.reconcile.kstatus import set_kstatus
from slipstream_operator.reconcile.notes import pair_notes
from slipstream_operator.reconcile.pair_case import PairCase, pair_case
from slipstream_operator.reconcile.pair_conditions import pair_conditions
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.reconcile.scale_to_zero import OwnNumber, own_number
from slipstream_operator.reconcile.servers import is_complete, replicas_of, with_serving
from slipstream_operator.reconcile.usage import look_for_name_s, name_holder
from slipstream_operator.status.conditions import Conditions, find
from slipstream_operator.types import KubeObject, Observed, PairPlan


def reconcile_pair(observed: Observed, now: datetime) -> PairPlan:
    """The plan for one pair. `now` has a time zone.

    While the newest spec is invalid, or waits until clients stop using the old model name, the last good spec counts.
    The children then stay unchanged, but a pair that scales to zero still does. They also stay unchanged while the pair
    has problems, such as a name or a claim that another pair has.
    """
    case = pair_case(observed, now)
    holder = None if case.pair is None or case.claim is None else name_holder(case.pair, case.claim, now)
    if case.pair is not None and holder is not None and holder.until is not None:
        # The message needs the end of the reservation, which is the same as in the status.
        kept = Problem("spec.model", name_taken(case.pair, None, holder))
        case = msgspec.structs.replace(case, problems=(kept,))
    status = _status(case, holder)
    notes = pair_notes(case.prior, status, ignored=case.ignored, without_effect=case.annotations_without_effect)
    children, number = None, OwnNumber(None)
    if case.pair is not None and not case.problems and not case.is_renamed_now:
        number = own_number(case.pair, observed, case.usage.last_request, status.conditions, now)
        # A verdict takes effect once it is stored: the same evidence might not decide alike again.
        is_settled = case.new is None or not case.new.is_decided_now
        if is_settled and (case.newest.item is not None or case.new is not None or number.replicas is not None):
            children = None if lacks_kind(case.pair, observed.defaults) else _children(case.pair, case, number)
    next_look_s = _next_look_s(case, status, holder, number)
    return PairPlan(children=children, status=status, notes=notes, next_look_s=next_look_s)


def _next_look_s(case: PairCase, status: ModelPairStatus, holder: NameHolder | None, number: OwnNumber) -> float | None:
    if case.is_renamed_now:
        return 0.0
    looks = (
        None if case.new is None else case.new.next_look_s,
        case.usage.next_look_s,
        look_for_name_s(case.prior.name_holder, holder, case.claim, case.now),
        _look_for_deadline_s(case, status),
        number.next_look_s,
    )
    return min((look for look in looks if look is not None), default=None)


def _look_for_deadline_s(case: PairCase, status: ModelPairStatus) -> float | None:
    """The time until a rollout of groups is stuck."""
    rolling, deadline = find(status.conditions, ConditionType.PROGRESSING), group_deadline(case)
    is_rolling = rolling is not None and rolling.reason == Reason.ROLLING_OUT
    return max(0.0, (deadline - case.now).total_seconds()) if is_rolling and deadline is not None else None


def _children(pair: ModelPair, case: PairCase, number: OwnNumber) -> tuple[KubeObject, ...]:
    """The children of the version in use, and of a new revision that is compared with it."""
    observed, new = case.observed, case.new
    if number.replicas is not None:
        pair = with_serving(pair, replicas=number.replicas)
    uid = observed.raw["metadata"]["uid"]
    beside: tuple[KubeObject, ...] = ()
    if new is not None:
        pair = serving_pair(pair, new.pair)
        beside = canary_children(new, pair, observed)
    return (*children_of(pair, uid=uid, defaults=observed.defaults, live=observed.deployment), *beside)


def _canary(case: PairCase) -> CanaryStatus | None:
    """The state of the newest revision that is or was compared with the serving one."""
    if case.new is not None:
        return case.new.status
    before = case.prior.canary
    is_over = before is not None and before.phase in (CanaryPhase.PROMOTED, CanaryPhase.ROLLED_BACK)
    return before if is_over or case.newest.item is None else None


def _served(case: PairCase, replicas: Replicas) -> tuple[str, ...]:
    """The revisions that all servers of the pair have had, newest first."""
    live, before = case.observed.deployment, case.prior.served
    is_written = case.prior.observed_generation >= case.generation and not case.observed.rejected
    if case.pair is None or live is None or not is_written:
        return before
    if not replicas.desired or not is_complete(live, replicas.desired):
        return before
    revision = revision_of(case.pair)
    return (revision, *(one for one in before if one != revision))[:MAX_SERVED]


def _status(case: PairCase, holder: NameHolder | None) -> ModelPairStatus:
    policy = case.observed.policy or SpeculationPolicyStatus()
    replicas = replicas_of(case.pair, case.observed.deployment)
    conditions = Conditions(case.prior.conditions, case.generation, case.now, served=case.served_generation)
    for type, value in pair_conditions(case, replicas):
        conditions.set(type, *value)
    set_kstatus(conditions, rolls_out=True)
    state, reason = headline(conditions.all, policy)
    return ModelPairStatus(
        observed_generation=case.generation,
        state=state,
        reason=reason,
        speculating=policy.speculating,
        accept=policy.accept,
        p95=policy.p95,
        replicas=replicas,
        selector="" if case.pair is None else selector_of(case.pair, case.observed.defaults),
        gateways=case.observed.gateways,
        last_request_time=case.usage.last_request_time,
        in_use=case.usage.in_use,
        canary=_canary(case),
        served=_served(case, replicas),
        name_holder=holder,
        conditions=conditions.all,
        last_good=to_keep(case.good),
    )


_HEADLINES: tuple[tuple[ConditionType, str, str], ...] = (
    (ConditionType.KILL_SWITCH_ACTIVE, "True", "Killed"),
    (ConditionType.ACCEPTED, "False", "NotAccepted"),
    (ConditionType.RESOLVED_REFS, "False", "Unresolved"),
    (ConditionType.READY, "False", "NotReady"),
    (ConditionType.TOKENIZER_COMPATIBLE, "False", "Incompatible"),
    (ConditionType.SPECULATION_AVAILABLE, "False", "Degraded"),
)

_STUCK = frozenset({Reason.CHILDREN_REJECTED, Reason.DEADLINE_EXCEEDED})


def headline(conditions: Sequence[Condition], policy: SpeculationPolicyStatus) -> tuple[str, str]:
    """The state and its reason: the worst problem, or the activity of a pair without a problem.

    Killed, Invalid, NotAccepted (the newest spec is not accepted: the last good one is served), Unresolved, NotReady,
    Incompatible (only the target is served), Degraded (servers answer, but some of them may not speculate), RolledBack
    (some classes are rolled back, see the policy), Rolling, Stuck (the rollout is stuck, and older servers serve),
    Comparing (a new revision is compared with the serving one), Ready.
    """
    for type, bad, state in _HEADLINES:
        found = find(conditions, type)
        if found is not None and found.status == bad and found.reason != Reason.COMPARING_REVISION:
            return ("Invalid" if found.reason == Reason.INVALID_SPEC else state), found.reason
    taken_back = find(policy.conditions, ConditionType.ROLLED_BACK)
    if taken_back is not None and taken_back.status == "True":
        return "RolledBack", taken_back.reason
    rolling = find(conditions, ConditionType.PROGRESSING)
    if rolling is not None and (rolling.status == "True" or rolling.reason in _STUCK):
        return "Rolling" if rolling.status == "True" else "Stuck", rolling.reason
    accepted = find(conditions, ConditionType.ACCEPTED)
    if accepted is not None and accepted.status == "False":
        return "Comparing", accepted.reason
    ready = find(conditions, ConditionType.READY)
    return "Ready", ready.reason if ready is not None else ""
