"""The state of a policy's classes before a decision, from the operator's own memory. If that is lost, the state is
read from the status, which may have been edited by hand.

A status alone can never promote a class. The operator's memory counts: its ledger and the state sealed in the
checkpoint. If they differ, the later one counts, since another operator may have decided in the meantime. A status that
differs from the memory is corrected. Without a memory, a class that may have been rolled back counts as rolled back,
and any other class starts at the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
from slipstream_core.manifest.speculation_policy import SpeculationPolicySpec
from slipstream_core.manifest.status import ClassStatus, LastDecision, Phase, SpeculationPolicyStatus, read_status

from slipstream_operator.rollout.analysis.facts import ClassFacts, ClassMemory
from slipstream_operator.rollout.analysis.outcomes import CLASSES
from slipstream_operator.rollout.transitions import ClassState, initial
from slipstream_operator.status.conditions import read_time


def remembered(
    prior: SpeculationPolicyStatus,
    sealed: Mapping[str, ClassMemory],
    evidence: Mapping[str, ClassFacts],
    spec: SpeculationPolicySpec,
    now: datetime,
) -> Mapping[str, ClassState]:
    """The starting states of all known classes, by name. `sealed` are the states in the checkpoint of `prior`."""
    shown = {one.name: one for one in prior.classes if one.name in CLASSES}
    starts = {}
    for name in sorted({*sealed, *shown, *evidence} & CLASSES):
        facts, one = evidence.get(name), shown.get(name)
        own = facts.memory if facts is not None else None
        memory = _later(own, sealed.get(name))
        decision = one.last_decision if one is not None else None
        if memory is not None:
            is_own = own is None or own == memory
            starts[name] = _from_memory(name, memory, now, decision, is_own=is_own)
        elif one is not None:
            starts[name] = _from_status(one, prior, spec, now)
    return starts


def _later(own: ClassMemory | None, sealed: ClassMemory | None) -> ClassMemory | None:
    """The memory that counts. Under the same spec only a later attempt ends a rollback; a later time alone does
    not."""
    if own is None or sealed is None or own == sealed:
        return own if own is not None else sealed
    if own.is_of_spec(sealed) and own.retry_token == sealed.retry_token:
        for back, other in ((own, sealed), (sealed, own)):
            if back.phase is Phase.ROLLED_BACK and other.phase is not Phase.ROLLED_BACK:
                is_over = other.retries > back.retries and not _is_before(other, back)
                return other if is_over else back
    return sealed if _is_before(own, sealed) else own


def _is_before(one: ClassMemory, other: ClassMemory) -> bool:
    moments = read_time(one.since), read_time(other.since)
    return moments[0] is not None and moments[1] is not None and moments[0] < moments[1]


def edited_classes(prior: SpeculationPolicyStatus, sealed: Mapping[str, ClassMemory]) -> list[str]:
    """The names of the classes whose entry in the status differs from the sealed state."""
    shown = {one.name: one for one in prior.classes}
    return sorted(
        name
        for name in {*sealed, *shown}
        if sealed and (name not in sealed or name not in shown or not sealed[name].is_shown_by(shown[name]))
    )


def _from_memory(
    name: str, memory: ClassMemory, now: datetime, decision: LastDecision | None, *, is_own: bool
) -> ClassState:
    return ClassState(
        name=name,
        phase=memory.phase,
        share=memory.share,
        step=memory.step,
        since=read_time(memory.since) or now,
        retries=memory.retries,
        retry_at=read_time(memory.retry_at or ""),
        last_decision=decision,
        hold_back_share=memory.hold_back_share,
        hold_back_since=read_time(memory.hold_back_since),
        spec_hash=memory.spec_hash,
        own_hash=memory.own_hash,
        retry_token=memory.retry_token,
        is_own=is_own,
    )


def _from_status(
    one: ClassStatus, prior: SpeculationPolicyStatus, spec: SpeculationPolicySpec, now: datetime
) -> ClassState:
    said = [one.last_decision, *(decision for decision in prior.decisions if decision.name == one.name)]
    latest = next((decision for decision in said if decision is not None), None)
    back = Phase.ROLLED_BACK.value
    state = initial(spec, one.name, now, retries=one.retries)
    if one.phase is Phase.ROLLED_BACK or any(each is not None and each.to_phase == back for each in said[:2]):
        state = ClassState(
            name=one.name,
            phase=Phase.ROLLED_BACK,
            share=0.0,
            step=min(one.step, len(spec.rollout.steps) - 1),
            since=read_time(one.since) or now,
            retries=one.retries,
            retry_at=read_time(one.retry_at or "") if one.phase is Phase.ROLLED_BACK else None,
        )
    judged_under = {"spec_hash": prior.spec_hash, "own_hash": one.spec_hash, "retry_token": prior.retry_token}
    return msgspec.structs.replace(state, last_decision=latest, **judged_under)


def readable(status: object) -> SpeculationPolicyStatus:
    """A policy's status. Of one that cannot be parsed, the checkpoint, which has a checksum of its own."""
    checkpoint = status.get("checkpoint") if isinstance(status, Mapping) else None
    rest = SpeculationPolicyStatus(checkpoint=checkpoint if isinstance(checkpoint, str) else "")
    return read_status(status, SpeculationPolicyStatus) or rest
