"""A SpeculationPolicy's status from its spec, its pair and its evidence. Pure: the same values give the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.fingerprint import spec_hash
from slipstream_core.manifest.objects import ModelPair, SpeculationPolicy, SpeculationPolicySpec
from slipstream_core.manifest.resources import parse_resource, raw_kill_switch
from slipstream_core.manifest.status import (
    MAX_DECISIONS,
    ClassStatus,
    ConditionType,
    GatewaysStatus,
    LastDecision,
    Phase,
    SpeculationPolicyStatus,
)
from slipstream_core.manifest.versions import GoodVersion, good_version, to_keep

from slipstream_operator.reconcile.pair_conditions import accepted
from slipstream_operator.reconcile.policy_conditions import Judged, PolicyReason, Subject, ready, set_conditions
from slipstream_operator.reconcile.policy_notes import policy_notes
from slipstream_operator.reconcile.summary import class_message, columns
from slipstream_operator.rollout.analysis import ClassFacts
from slipstream_operator.rollout.hold_back import with_control
from slipstream_operator.rollout.starting import Start, edited_classes, remembered, salvaged, sealed_in
from slipstream_operator.rollout.transitions import ClassState, Situation, advance, decided, initial, soak_end, stale_at
from slipstream_operator.status.conditions import Conditions, find, read_time, rfc3339
from slipstream_operator.types import KubeObject, PolicyPlan

_OTHER_SERVERS = "servers are being brought to this spec"


def reconcile_policy(
    raw: KubeObject,
    *,
    last_good: GoodVersion | None = None,
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
    servers_current: bool = True,
) -> PolicyPlan:
    """The status of the SpeculationPolicy `raw` now, its Events, and when to reconcile again.

    `last_good` is its last usable version, None if at most the status has one. `problems` are the problems of the
    newest version, alone or in combination with other objects. `ignored` are the fields that this version of the
    operator does not know. `pair` is None if it does not exist or is refused. `pair_killed`: a kill switch other than
    this policy's is on. `prior` is the last status, None if there is none that can be read. `evidence` has the facts of
    each class from the policy's ledger. `store_connected`: `evidence` includes all outcomes that gateways have stored.
    `now` has a time zone. `servers_current` False: some of the pair's servers have another spec than the pair. The
    caller adds the checkpoint.
    """
    parsed = parse_resource(raw)
    good = good_version(raw, parsed, last_good)
    policy = parsed.item if isinstance(parsed.item, SpeculationPolicy) else None
    counts = good.parsed.item if good is not None else None  # while the newest spec is invalid, no class is promoted
    before = prior if prior is not None else salvaged(raw)
    sealed = sealed_in(before.checkpoint, (parsed if good is None else good.parsed).pair_key)
    subject = Subject(
        policy=policy,
        accepted=accepted(parsed.problems, good),
        problems=problems,
        ignored=ignored,
        pair=pair,
        pair_ready=pair_ready,
        killed=_killed(raw, pair_killed),
        gateways=gateways,
        connected=store_connected,
    )
    now = now.replace(microsecond=0)
    spec = counts.spec if isinstance(counts, SpeculationPolicy) else SpeculationPolicySpec(pair="unknown")
    held = _held(subject, servers_current=servers_current)
    situation = Situation(spec=spec, now=now, held=held, released=_released(before, now), connected=store_connected)
    starts = remembered(before, sealed, evidence, spec, now)
    if held is None and _waited_for_servers(before):
        starts = {name: _resumed(start, now) for name, start in starts.items()}
    judged, renewal = _judge(subject, before, starts, evidence, situation)
    news = _news(before, judged, renewal, now)
    status = _status(raw, subject, before, judged, renewal, situation)
    decisions = (*news, *before.decisions)[:MAX_DECISIONS]
    status = msgspec.structs.replace(status, decisions=decisions, last_good=to_keep(good))
    notes = policy_notes(prior, status, news=news, edited=edited_classes(before, sealed), ignored=ignored)
    return PolicyPlan(status=status, notes=notes, next_look_s=_next_look_s(judged, situation))


def _killed(raw: KubeObject, pair_killed: bool) -> str | None:
    """The kill switch that is on; None where none is."""
    if raw_kill_switch(raw):
        return "the policy's own kill switch is on"
    return "the kill switch of its pair, or of another policy for it, is on" if pair_killed else None


def _held(subject: Subject, *, servers_current: bool) -> str | None:
    """The reason why the policy is held now, or None. See `Situation`."""
    if subject.killed is not None:
        return subject.killed
    verdict = ready(subject)
    if verdict.status != "True":
        return verdict.message
    return None if servers_current else _OTHER_SERVERS


def _waited_for_servers(before: SpeculationPolicyStatus) -> bool:
    """Whether the policy was held because of outdated servers when the status was written."""
    progressing = find(before.conditions, ConditionType.PROGRESSING)
    return (
        progressing is not None
        and progressing.reason == PolicyReason.HELD
        and progressing.message.endswith(_OTHER_SERVERS)
    )


def _resumed(start: Start, now: datetime) -> Start:
    """The class, with a soak that starts now: the soak so far was of other servers."""
    if start.state.phase is not Phase.PROGRESSING:
        return start
    return msgspec.structs.replace(start, state=msgspec.structs.replace(start.state, since=now))


def _released(before: SpeculationPolicyStatus, now: datetime) -> datetime:
    """The end of the last hold by a kill switch or by the condition Ready. It is `now` if the policy is still held, or
    if the end is unknown."""
    since = []
    for type, wanted in ((ConditionType.KILL_SWITCH_ACTIVE, "False"), (ConditionType.READY, "True")):
        condition = find(before.conditions, type)
        moment = read_time(condition.last_transition_time) if condition and condition.status == wanted else None
        since.append(moment or now)
    return max(since)


class _Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """The spec that the classes are judged under, and the decision about a new one."""

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
    """Every class with its present state, and the spec that they are judged under."""
    token, current = None, None
    if subject.policy is not None and subject.pair is not None:
        token, current = subject.policy.spec.retry_token, spec_hash(subject.pair, subject.policy)
    judged = []
    for name in sorted({*starts, *evidence} if subject.policy is not None else starts):
        start, facts = starts.get(name), evidence.get(name)
        if start is None:
            judged.append(_advanced(initial(situation.spec, name, situation.now), facts, situation))
        elif current is not None and (begun := _begun_anew(start, current, token, situation)):
            begun = with_control(begun, None, situation, before=begun)
            judged.append(Judged(state=begun, facts=None))  # the facts are of the previous spec
        else:
            judged.append(_advanced(start.state, facts if start.is_own else None, situation))
    return tuple(judged), _renewal(before, starts, current, token, situation.now)


def _renewal(
    before: SpeculationPolicyStatus,
    starts: Mapping[str, Start],
    current: str | None,
    token: str | None,
    now: datetime,
) -> _Renewal:
    """The spec that the classes are judged under from now on. `current` is its hash, None if it is not known."""
    if current is None:
        return _unrenewed(before, starts)
    outdated = any(start.spec_hash != current for start in starts.values())
    decision = LastDecision(time=rfc3339(now), rule="NewSpec", message="new spec: every class restarts")
    honoured = token or next((start.retry_token for start in starts.values()), before.retry_token)
    return _Renewal(spec_hash=current, retry_token=honoured, decisions=(decision,) if outdated else ())


def _unrenewed(before: SpeculationPolicyStatus, starts: Mapping[str, Start]) -> _Renewal:
    """The spec that the classes were judged under, from their memory, since the status may have been deleted. If they
    differ, a rolled-back class takes precedence, then the latest one."""
    if not starts:
        return _Renewal(spec_hash=before.spec_hash, retry_token=before.retry_token)
    latest = max(starts.values(), key=lambda start: (start.state.phase is Phase.ROLLED_BACK, start.state.since))
    return _Renewal(spec_hash=latest.spec_hash, retry_token=latest.retry_token)


def _begun_anew(start: Start, spec_hash: str, token: str | None, situation: Situation) -> ClassState | None:
    """The class in its initial state if its spec has changed or a new retryToken applies to it; else None."""
    state = start.state
    begun = initial(situation.spec, state.name, situation.now)
    if start.spec_hash != spec_hash:
        return begun
    if token is None or token == start.retry_token or state.phase is not Phase.ROLLED_BACK:
        return None
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
