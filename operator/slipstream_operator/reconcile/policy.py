"""A SpeculationPolicy's status from its spec, its pair and its evidence. Pure: the same values give the same plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from slipstream_core.manifest.fingerprint import SpecHashes
from slipstream_core.manifest.status import (
    MAX_DECISIONS,
    ClassStatus,
    Condition,
    ConditionType,
    LastDecision,
    Phase,
    SpeculationPolicyStatus,
)
from slipstream_core.manifest.versions import to_keep

from slipstream_operator.reconcile.kstatus import set_kstatus
from slipstream_operator.reconcile.notes import policy_notes
from slipstream_operator.reconcile.policy_conditions import Judged, held, policy_conditions
from slipstream_operator.reconcile.policy_facts import PolicyFacts
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.reconcile.summary import class_message, columns
from slipstream_operator.rollout.analysis.facts import ClassFacts
from slipstream_operator.rollout.hold_back import with_control
from slipstream_operator.rollout.remembered import edited_classes, remembered
from slipstream_operator.rollout.transitions import (
    ClassState,
    Situation,
    advance,
    decided,
    initial,
    rescheduled,
    soak_end,
    stale_at,
)
from slipstream_operator.status.conditions import Conditions, find, read_time, rfc3339
from slipstream_operator.types import PolicyPlan


def reconcile_policy(facts: PolicyFacts) -> PolicyPlan:
    """The status of the SpeculationPolicy now, its Events, and when to reconcile again. The caller adds the
    checkpoint."""
    now, before = facts.now.replace(microsecond=0), facts.prior
    hold, before_hold = held(facts), find(before.conditions, ConditionType.HELD)
    situation = Situation(
        spec=facts.spec,
        now=now,
        held=hold.message if hold.status == "True" else None,
        released=_released(before_hold, now),
        connected=facts.connected is True,
    )
    starts = remembered(before, facts.sealed, facts.classes, facts.spec, now)
    if situation.held is None and before_hold is not None and before_hold.reason == Reason.OLD_SERVERS:
        starts = {name: _resumed(state, now) for name, state in starts.items()}
    judged, renewal = _judge(facts, starts, situation)
    news = _news(before, judged, renewal, now)
    status = _status(facts, judged, renewal, situation)
    status = msgspec.structs.replace(status, decisions=(*news, *before.decisions)[:MAX_DECISIONS])
    notes = policy_notes(before, status, news=news, edited=edited_classes(before, facts.sealed), ignored=facts.ignored)
    return PolicyPlan(status=status, notes=notes, next_look_s=_next_look_s(judged, situation))


def _resumed(state: ClassState, now: datetime) -> ClassState:
    """The class, with a soak that starts now: the soak so far was of other servers."""
    return msgspec.structs.replace(state, since=now) if state.phase is Phase.PROGRESSING else state


def _released(held_before: Condition | None, now: datetime) -> datetime:
    """The end of the last hold. It is `now` if the policy was still held, or if the end is unknown."""
    is_over = held_before is not None and held_before.status == "False"
    return (read_time(held_before.last_transition_time) if held_before is not None and is_over else None) or now


class _Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """The spec that the classes are judged under, and the decision about a new one."""

    spec_hash: str
    retry_token: str | None
    decisions: tuple[LastDecision, ...] = ()


def _judge(
    facts: PolicyFacts, starts: Mapping[str, ClassState], situation: Situation
) -> tuple[tuple[Judged, ...], _Renewal]:
    """Every class with its present state, and the spec that they are judged under."""
    if facts.policy is None or facts.pair is None:
        names = sorted(starts if facts.policy is None else {*starts, *facts.classes})
        kept = [(starts.get(name), _kept(name, starts.get(name), facts, situation)) for name in names]
        judged_alike = tuple(found if state is None else _judged_under(found, state) for state, found in kept)
        return judged_alike, _unrenewed(facts.prior, starts)
    token, hashes = facts.policy.spec.retry_token, SpecHashes(facts.pair, facts.policy)
    judged: list[Judged] = []
    restarted: list[str] = []
    for name in sorted({*starts, *facts.classes}):
        state, own = starts.get(name), hashes.of(name)
        begun: ClassState | None = None
        if state is not None and _is_of_another_spec(state, own, hashes.whole):
            restarted.append(name)
            begun = initial(situation.spec, name, situation.now)
        elif state is not None:
            state = state if state.spec_hash == hashes.whole else rescheduled(state, situation)
            begun = _retried(state, token, situation)
        if begun is None:
            found = _kept(name, state, facts, situation)
        else:  # the facts are of the previous spec or attempt
            found = Judged(state=with_control(begun, None, situation, before=begun), facts=None)
        present = msgspec.structs.replace(found.state, spec_hash=hashes.whole, own_hash=own)
        judged.append(msgspec.structs.replace(found, state=present))
    return tuple(judged), _renewal(facts.prior, starts, hashes.whole, token, restarted, situation.now)


def _is_of_another_spec(state: ClassState, own: str, whole: str) -> bool:
    """Version 0.1 has stored the hash of the whole spec alone."""
    return state.own_hash != own if state.own_hash else state.spec_hash != whole


def _judged_under(found: Judged, before: ClassState) -> Judged:
    """A class that is judged under the same spec as before."""
    state = msgspec.structs.replace(found.state, spec_hash=before.spec_hash, own_hash=before.own_hash)
    return msgspec.structs.replace(found, state=state)


def _kept(name: str, state: ClassState | None, facts: PolicyFacts, situation: Situation) -> Judged:
    """A class under the spec that it was judged under, or a new one."""
    seen = facts.classes.get(name)
    if state is None:
        return _advanced(initial(situation.spec, name, situation.now), seen, situation)
    return _advanced(state, seen if state.is_own else None, situation)


def _renewal(
    before: SpeculationPolicyStatus,
    starts: Mapping[str, ClassState],
    whole: str,
    token: str | None,
    restarted: Sequence[str],
    now: datetime,
) -> _Renewal:
    """The spec that the classes are judged under from now on. `restarted` are those that it restarts."""
    honoured = token or next((state.retry_token for state in starts.values()), before.retry_token)
    names = "every class" if len(restarted) == len(starts) else ", ".join(restarted)
    verb = "restarts" if len(restarted) in (1, len(starts)) else "restart"
    decision = LastDecision(time=rfc3339(now), rule="NewSpec", message=f"new spec: {names} {verb}")
    return _Renewal(spec_hash=whole, retry_token=honoured, decisions=(decision,) if restarted else ())


def _unrenewed(before: SpeculationPolicyStatus, starts: Mapping[str, ClassState]) -> _Renewal:
    """The spec that the classes were judged under, while the present one cannot be read: from their memory, since the
    status may have been deleted. If they differ, a rolled-back class takes precedence, then the latest one."""
    if not starts:
        return _Renewal(spec_hash=before.spec_hash, retry_token=before.retry_token)
    latest = max(starts.values(), key=lambda state: (state.phase is Phase.ROLLED_BACK, state.since))
    return _Renewal(spec_hash=latest.spec_hash, retry_token=latest.retry_token)


def _retried(state: ClassState, token: str | None, situation: Situation) -> ClassState | None:
    """The class in its initial state if a new retryToken applies to it; else None."""
    if token is None or token == state.retry_token or state.phase is not Phase.ROLLED_BACK:
        return None
    begun = initial(situation.spec, state.name, situation.now)
    return decided(state, begun, "RetryToken", "new retryToken: the class restarts")


def _advanced(state: ClassState, facts: ClassFacts | None, situation: Situation) -> Judged:
    after = advance(state, facts, situation)
    return Judged(state=with_control(after, facts, situation, before=state), facts=facts)


def _news(
    before: SpeculationPolicyStatus, judged: tuple[Judged, ...], renewal: _Renewal, now: datetime
) -> tuple[LastDecision, ...]:
    """The decisions of this reconcile."""
    last = {one.name: one.last_decision for one in before.classes}
    made = (one.state.last_decision for one in judged if one.state.last_decision != last.get(one.state.name))
    return (*renewal.decisions, *(one for one in made if one is not None and one.time == rfc3339(now)))


def _status(
    facts: PolicyFacts, judged: tuple[Judged, ...], renewal: _Renewal, situation: Situation
) -> SpeculationPolicyStatus:
    conditions = Conditions(facts.prior.conditions, facts.generation, situation.now)
    for type, value in policy_conditions(facts, judged, situation):
        conditions.set(type, *value)
    set_kstatus(conditions, rolls_out=False)
    return SpeculationPolicyStatus(
        observed_generation=facts.generation,
        spec_hash=renewal.spec_hash,
        retry_token=renewal.retry_token,
        classes=tuple(_class_status(one, situation) for one in judged),
        gateways=facts.gateways,
        conditions=conditions.all,
        last_good=to_keep(facts.good),
        **columns(facts, judged, conditions.all),
    )


def _class_status(judged: Judged, situation: Situation) -> ClassStatus:
    state, facts = judged.state, judged.facts
    figures: dict[str, Any] = {}
    if facts is not None:
        figures = {
            "speculative": facts.speculative,
            "control": facts.control,
            "decided_plain": facts.decided_plain,
        }
    return ClassStatus(
        name=state.name,
        phase=state.phase,
        share=state.share,
        hold_back_share=state.hold_back_share,
        hold_back_since="" if state.hold_back_since is None else rfc3339(state.hold_back_since),
        spec_hash=state.own_hash,
        step=state.step,
        since=rfc3339(state.since),
        retries=state.retries,
        retry_at=None if state.retry_at is None else rfc3339(state.retry_at),
        # A class that has just changed has no facts yet: the known facts are of its previous state.
        message=class_message(state, None if state.since == situation.now else facts, situation)[:1024],
        last_decision=state.last_decision,
        **figures,
    )


def _next_look_s(judged: tuple[Judged, ...], situation: Situation) -> float | None:
    """The seconds until the next transition that needs only time; None if there is none."""
    moments = []
    for state, facts in ((one.state, one.facts) for one in judged):
        if situation.held is None and state.phase is Phase.PROGRESSING:
            moments.append(soak_end(state, situation))
        if situation.held is None and state.retry_at is not None:
            moments.append(state.retry_at)
        if situation.held is None and facts is not None and state.phase in (Phase.PROGRESSING, Phase.PROMOTED):
            moments.append(stale_at(state, facts, situation))
    ahead = [moment - situation.now for moment in moments if moment > situation.now]
    return max(min(ahead) / timedelta(seconds=1), 1.0) if ahead else None
