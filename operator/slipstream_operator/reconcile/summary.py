"""The summary of a policy: the columns of `kubectl get`, and one line for each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from slipstream_core.manifest.status import Condition, ConditionType, Phase

from slipstream_operator.reconcile.policy_conditions import Judged, waiting_for
from slipstream_operator.reconcile.policy_facts import PolicyFacts
from slipstream_operator.reconcile.reasons import AT_REST, Reason
from slipstream_operator.rollout.analysis.facts import ClassFacts, Verdict
from slipstream_operator.rollout.analysis.window import Histogram, merge, p95_of
from slipstream_operator.rollout.transitions import (
    ClassState,
    Situation,
    is_stale,
    retries_back_at,
    soak_end,
    without_data,
)
from slipstream_operator.status.conditions import find, rfc3339

_PLAIN = AT_REST | {Reason.PAIR_NOT_READY}


class Columns(TypedDict):
    """The fields of a status that `kubectl get` shows."""

    state: str
    reason: str
    speculating: str
    accept: str
    p95: str


def columns(facts: PolicyFacts, judged: Sequence[Judged], conditions: Sequence[Condition]) -> Columns:
    """The state in one word, the most important reason, and the figures over all classes."""
    known = [one.facts for one in judged if one.facts is not None]
    ready = find(conditions, ConditionType.READY)
    is_plain = facts.killed is not None or (ready is not None and ready.reason in _PLAIN)
    fast = 0 if is_plain else sum(one.speculates for one in judged)
    accepts, times = sum(one.accepts for one in known), Histogram()
    for one in known:
        merge(times, one.e2e)
    p95_s = p95_of(times)
    state, condition = _state(judged, conditions)
    return Columns(
        state=state,
        reason=condition.reason if condition is not None else "",
        speculating=f"{fast}/{len(judged)}",
        accept=f"{sum(one.acceptance for one in known) / accepts:.2f}" if accepts else "",
        p95=f"{p95_s:.3g}s" if p95_s is not None else "",
    )


def class_message(state: ClassState, facts: ClassFacts | None, situation: Situation) -> str:
    """The reason for the phase of a class, and the conditions for the next phase."""
    decision = state.last_decision
    if state.phase in (Phase.ROLLED_BACK, Phase.STALE):
        return decision.message if decision is not None else ""
    if state.phase is Phase.DISABLED:
        return "decodes plainly by a rule of the policy"
    if state.phase is Phase.ENABLED:
        return "speculates by a rule of the policy; only errors roll it back"
    idle = without_data(facts) if facts is not None else ""
    if state.phase is Phase.PROMOTED:
        held_back = _held_back(state, situation)
        return f"promoted; share {state.share:.3g}{held_back}{_declined(facts)}{_used(state, situation)}{idle}"
    steps = situation.spec.rollout.steps
    share = f"{state.share:.3g} of the requests that would speculate do{_held_back(state, situation)}"
    where = f"step {state.step + 1} of {len(steps)}: {share}"
    return f"{where}; waiting for {_waits(state, facts, situation)}{idle}"


def _held_back(state: ClassState, situation: Situation) -> str:
    """The hold-back of the class, if it was raised."""
    share = state.hold_back_share
    if share is None or share <= situation.spec.hold_back_share:
        return ""
    return f"; {share:.3g} of it is held back until the comparison with the control is clear"


def _declined(facts: ClassFacts | None) -> str:
    """The share of a promoted class that gateways decode plainly, by their own predictions."""
    if facts is None or not facts.decided_plain:
        return ""
    hardly = ", so that it hardly speculates" if facts.hardly_speculates else ""
    return f"; decided plain by the gateways: {facts.decided_plain:.0%}{hardly}"


def _used(state: ClassState, situation: Situation) -> str:
    if not state.retries:
        return ""
    most = situation.spec.rollback.max_retries
    return f"; used {state.retries} of {most} retries, available again at {rfc3339(retries_back_at(state, situation))}"


def _waits(state: ClassState, facts: ClassFacts | None, situation: Situation) -> str:
    if situation.held is not None:
        return f"the end of: {situation.held}"
    waits = []
    if situation.now < (end := soak_end(state, situation)):
        waits.append(f"the soak until {rfc3339(end)}")
    if facts is None:
        return ", ".join([*waits, "its first answers"])
    if not situation.connected or not facts.complete:
        waits.append("the outcome store")
    elif is_stale(state, facts, situation):
        waits.append("any outcome")
    waits += waiting_for(state, facts, situation)
    gain = facts.gain
    if gain.verdict is Verdict.FAIL and gain.bound is not None:
        waits.append(f"a gain: at most {gain.bound:+.1%} compared with the control, needed below {gain.threshold:+.1%}")
    return ", ".join(waits) or "nothing: it advances at the next reconcile"


def _state(judged: Sequence[Judged], conditions: Sequence[Condition]) -> tuple[str, Condition | None]:
    """The state, and the condition that explains it: reasons against speculating first. Stale classes count only where
    no other speculates."""
    killed, ready = find(conditions, ConditionType.KILL_SWITCH_ACTIVE), find(conditions, ConditionType.READY)
    if killed is not None and killed.status == "True":
        return "Killed", killed
    if ready is not None and (ready.status != "True" or ready.reason in AT_REST):
        return ready.reason, ready
    phases = {one.state.phase for one in judged}
    for phase, type in (
        (Phase.ROLLED_BACK, ConditionType.ROLLED_BACK),
        (Phase.PROGRESSING, ConditionType.PROGRESSING),
        (Phase.PROMOTED, ConditionType.PROGRESSING),
        (Phase.ENABLED, ConditionType.PROGRESSING),
        (Phase.STALE, ConditionType.ANALYSIS_CONCLUSIVE),
    ):
        if phase in phases:
            return phase.value, find(conditions, type)
    return ("Disabled" if phases else "Waiting"), find(conditions, ConditionType.PROGRESSING)
