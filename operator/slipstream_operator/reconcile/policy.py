"""A SpeculationPolicy's status from its spec, its pair and its evidence. Pure: the same values give the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec
from slipstream_gateway.manifest.check import Problem
from slipstream_gateway.manifest.fingerprint import spec_hash
from slipstream_gateway.manifest.objects import ModelPair, SpeculationPolicy, SpeculationPolicySpec
from slipstream_gateway.manifest.resources import parse_resource, raw_kill_switch
from slipstream_gateway.manifest.status import (
    MAX_DECISIONS,
    ClassStatus,
    ConditionType,
    GatewaysStatus,
    LastDecision,
    Phase,
    SpeculationPolicyStatus,
)

from slipstream_operator.analysis import ClassFacts
from slipstream_operator.analysis.checkpoint import sealed_standings
from slipstream_operator.conditions import Conditions, find, read_time, rfc3339
from slipstream_operator.plan import KubeObject, PolicyPlan
from slipstream_operator.reconcile.classes import ClassState, Situation, advance, decided, initial, soak_end, stale_at
from slipstream_operator.reconcile.policy_notes import policy_notes
from slipstream_operator.reconcile.policy_verdicts import Judged, Subject, ready, set_conditions
from slipstream_operator.reconcile.starting import Start, edited_classes, remembered, salvaged
from slipstream_operator.reconcile.summary import class_message, columns


def reconcile_policy(
    raw: KubeObject,
    *,
    problems: tuple[Problem, ...],
    ignored: tuple[str, ...],
    pair: ModelPair | None,
    pair_ready: bool,
    pair_killed: bool,
    prior: SpeculationPolicyStatus | None,
    evidence: Mapping[str, ClassFacts],
    store_connected: bool,
    gateways: GatewaysStatus,
    now: datetime,
) -> PolicyPlan:
    """The status of the SpeculationPolicy `raw` now, what happened, and when to look again.

    `problems` are what is wrong with it by itself or beside others, `ignored` the fields that this version does not
    know; `pair` is None where it does not exist or is refused. `pair_killed` by another switch than this policy's.
    `prior` is the last status, None where there is none that can be read. `evidence` is what the policy's ledger says
    of each class; `store_connected`: everything that gateways have stored is in it. `now` has a time zone. The
    checkpoint is the caller's to add.
    """
    item = parse_resource(raw).item
    policy = item if isinstance(item, SpeculationPolicy) else None
    before = prior if prior is not None else salvaged(raw)
    sealed = sealed_standings(before.checkpoint)
    subject = Subject(
        policy=policy,
        problems=problems,
        ignored=ignored,
        pair=pair,
        pair_ready=pair_ready,
        killed=_killed(raw, pair_killed),
        gateways=gateways,
        connected=store_connected,
    )
    now = now.replace(microsecond=0)
    spec = policy.spec if policy is not None else SpeculationPolicySpec(pair="unknown")
    situation = Situation(
        spec=spec, now=now, held=_held(subject), released=_released(before, now), connected=store_connected
    )
    starts = remembered(before, sealed, evidence, spec, now)
    judged, renewal = _judge(subject, before, starts, evidence, situation)
    news = _news(before, judged, renewal, now)
    status = _status(raw, subject, before, judged, renewal, situation)
    status = msgspec.structs.replace(status, decisions=(*news, *before.decisions)[:MAX_DECISIONS])
    notes = policy_notes(prior, status, news=news, edited=edited_classes(before, sealed), ignored=ignored)
    return PolicyPlan(status=status, notes=notes, next_look_s=_next_look_s(judged, situation))


def _killed(raw: KubeObject, pair_killed: bool) -> str | None:
    """By whose kill switch nothing speculates; None where none is on."""
    if raw_kill_switch(raw):
        return "the policy's own kill switch is on"
    return "the kill switch of its pair, or of another policy for it, is on" if pair_killed else None


def _held(subject: Subject) -> str | None:
    """Why nothing may go up now: nothing speculates, or it is not known what should."""
    if subject.killed is not None:
        return subject.killed
    verdict = ready(subject)
    return None if verdict.status == "True" else verdict.message


def _released(before: SpeculationPolicyStatus, now: datetime) -> datetime:
    """Since when nothing has held the policy: from then on soaks and silence count. Now, where something did until
    now or it is not known."""
    since = []
    for type, wanted in ((ConditionType.KILL_SWITCH_ACTIVE, "False"), (ConditionType.READY, "True")):
        condition = find(before.conditions, type)
        moment = read_time(condition.last_transition_time) if condition and condition.status == wanted else None
        since.append(moment or now)
    return max(since)


class _Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """What the classes are judged under, and the decision that it is another spec now."""

    spec_hash: str
    retry_token: str | None
    decisions: tuple[LastDecision, ...] = ()


def _judge(
    subject: Subject,
    before: SpeculationPolicyStatus,
    starts: Mapping[str, Start],
    evidence: Mapping[str, ClassFacts],
    situation: Situation,
) -> tuple[tuple[Judged, ...], _Renewal]:
    """Every class with where it is now, and what they are judged under."""
    if subject.policy is None or subject.pair is None:  # what it would be judged under is not known
        left = [_advanced(start.state, evidence.get(name), situation) for name, start in starts.items()]
        return tuple(left), _Renewal(spec_hash=before.spec_hash, retry_token=before.retry_token)
    current = spec_hash(subject.pair, subject.policy)
    token = subject.policy.spec.retry_token
    judged = []
    for name in sorted({*starts, *evidence}):
        start, facts = starts.get(name), evidence.get(name)
        if start is None:
            judged.append(_advanced(initial(situation.spec, name, situation.now), facts, situation))
        elif begun := _begun_anew(start, current, token, situation):
            judged.append(Judged(state=begun, facts=None))  # the facts are of what was before
        else:
            judged.append(_advanced(start.state, facts, situation))
    outdated = any(start.spec_hash != current for start in starts.values())
    decision = LastDecision(time=rfc3339(situation.now), rule="NewSpec", message="a new spec: every class starts anew")
    honoured = token or next((start.retry_token for start in starts.values()), before.retry_token)
    return tuple(judged), _Renewal(spec_hash=current, retry_token=honoured, decisions=(decision,) if outdated else ())


def _begun_anew(start: Start, spec_hash: str, token: str | None, situation: Situation) -> ClassState | None:
    """The class from its beginning, where its spec is another one, or a new retryToken asks for it; else None."""
    state = start.state
    begun = initial(situation.spec, state.name, situation.now)
    if start.spec_hash != spec_hash:
        return begun
    if token is None or token == start.retry_token or state.phase is not Phase.ROLLED_BACK:
        return None
    return decided(state, begun, "RetryToken", "the spec has a new retryToken: the class starts anew")


def _advanced(state: ClassState, facts: ClassFacts | None, situation: Situation) -> Judged:
    return Judged(state=advance(state, facts, situation), facts=facts)


def _news(
    before: SpeculationPolicyStatus, judged: tuple[Judged, ...], renewal: _Renewal, now: datetime
) -> tuple[LastDecision, ...]:
    """The decisions that were made just now."""
    last = {one.name: one.last_decision for one in before.classes}
    made = (one.state.last_decision for one in judged if one.state.last_decision != last.get(one.state.name))
    return (*renewal.decisions, *(one for one in made if one is not None and one.time == rfc3339(now)))


def _status(
    raw: KubeObject,
    subject: Subject,
    before: SpeculationPolicyStatus,
    judged: tuple[Judged, ...],
    renewal: _Renewal,
    situation: Situation,
) -> SpeculationPolicyStatus:
    generation = int(raw.get("metadata", {}).get("generation") or 0)
    conditions = Conditions(before.conditions, generation, situation.now)
    set_conditions(conditions, subject, judged, situation)
    return SpeculationPolicyStatus(
        observed_generation=generation,
        spec_hash=renewal.spec_hash,
        retry_token=renewal.retry_token,
        classes=tuple(_class_status(one, situation) for one in judged),
        gateways=subject.gateways,
        conditions=conditions.all,
        **columns(subject, judged, conditions.all),
    )


def _class_status(judged: Judged, situation: Situation) -> ClassStatus:
    state, facts = judged.state, judged.facts
    figures = {} if facts is None else {"speculative": facts.speculative, "control": facts.control}
    return ClassStatus(
        name=state.name,
        phase=state.phase,
        share=state.share,
        step=state.step,
        since=rfc3339(state.since),
        retries=state.retries,
        retry_at=None if state.retry_at is None else rfc3339(state.retry_at),
        # What begins now has nothing behind it yet: the facts are of what was before.
        message=class_message(state, None if state.since == situation.now else facts, situation)[:1024],
        last_decision=state.last_decision,
        **figures,
    )


def _next_look_s(judged: tuple[Judged, ...], situation: Situation) -> float | None:
    """When the next thing may happen by time alone; None where nothing does."""
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
