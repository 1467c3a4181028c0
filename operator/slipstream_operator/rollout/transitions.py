"""The rollout's state machine for one class. Pure.

A rollback needs only the evidence of its own rule. A promotion needs complete evidence: a class keeps its phase while
any evidence is missing, late, edited or unknown.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from slipstream_core.manifest.speculation_policy import SpeculationPolicySpec, rule_of
from slipstream_core.manifest.status import LastDecision, Phase

from slipstream_operator.rollout.analysis.facts import ClassFacts, GainFacts, GuardFacts, Verdict
from slipstream_operator.rollout.trips import (
    E2E_CHANGE,
    NO_NUMBERS,
    SILENCES,
    Numbers,
    Trip,
    unchecked_words,
    worst_trip,
)
from slipstream_operator.status.conditions import rfc3339

_SPECULATING = frozenset({Phase.PROGRESSING, Phase.PROMOTED, Phase.ENABLED})
_INITIAL = {"plain": Phase.DISABLED, "speculative": Phase.ENABLED, "auto": Phase.PROGRESSING}
_TRIPPED_BY_GUARDS = frozenset({Phase.PROGRESSING, Phase.PROMOTED})
_UNCHECKED_WINDOWS = 2
_CONTENT = frozenset({Verdict.PASS, Verdict.NOT_APPLICABLE, Verdict.SHARED})


class ClassState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a class: the decided part of a `ClassStatus`, with `datetime` values instead of text.

    `hold_back_share` has been in force since `hold_back_since`. Both are None before the first decision. A stored state
    was judged under `spec_hash`, of which `own_hash` concerns the class (empty if it is not known), and `retry_token`.
    `is_own` False: another operator has decided it, so the evidence of this operator is of an earlier state.
    """

    name: str
    phase: Phase
    share: float
    step: int
    since: datetime
    retries: int = 0
    retry_at: datetime | None = None
    last_decision: LastDecision | None = None
    hold_back_share: float | None = None
    hold_back_since: datetime | None = None
    spec_hash: str = ""
    own_hash: str = ""
    retry_token: str | None = None
    is_own: bool = True

    @property
    def speculates(self) -> bool:
        return self.phase in _SPECULATING


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs that all classes of a policy share now.

    `held` is the reason why the policy is held, or None. A rollback is the only transition of a held policy's classes.
    `released` is the end of the last hold: the soak of a step and the time without outcomes are counted from then at
    the earliest. `connected`: all stored outcomes have been read.
    """

    spec: SpeculationPolicySpec
    now: datetime
    held: str | None
    released: datetime
    connected: bool


def initial(spec: SpeculationPolicySpec, name: str, now: datetime, *, retries: int = 0) -> ClassState:
    """The initial state of a class."""
    rule = rule_of(spec, name)
    phase = _INITIAL[rule.mode if rule is not None else "auto"]
    return ClassState(name=name, phase=phase, share=share_of(spec, phase, 0), step=0, since=now, retries=retries)


def share_of(spec: SpeculationPolicySpec, phase: Phase, step: int) -> float:
    """The share of requests that may speculate in a phase and a step."""
    steps = spec.rollout.steps
    if phase is Phase.PROGRESSING:
        return steps[min(step, len(steps) - 1)].share
    if phase is Phase.PROMOTED:
        return steps[-1].share
    return 1.0 if phase is Phase.ENABLED else 0.0


def advance(state: ClassState, facts: ClassFacts | None, situation: Situation) -> ClassState:
    """The state after at most one transition; `state` itself without one. `last_decision` is the decision for it."""
    if state.phase is Phase.DISABLED or facts is None:
        return state
    if trip := _trip(state, facts):
        return _rolled_back(state, trip, situation)
    if situation.held is not None or situation.now < state.since:
        return state  # also after the clock was set back, until it has reached `since` again
    if state.phase is Phase.ROLLED_BACK:
        return _retried(state, facts, situation)
    if state.phase is Phase.STALE:
        return _refreshed(state, facts, situation)
    if state.phase is Phase.ENABLED:
        return state
    if is_stale(state, facts, situation) and situation.spec.rollback.fail_mode == "plain":
        return _staled(state, situation)
    if (unchecked := _long_unchecked(state, facts, situation)) is not None:
        return _stepped_back(state, unchecked, situation)
    if state.phase is Phase.PROMOTED:
        return _proven(state, facts, situation)
    return _promoted(state, facts, situation) if may_promote(state, facts, situation) else state


def may_promote(state: ClassState, facts: ClassFacts, situation: Situation) -> bool:
    """Whether the class may leave its step: the soak is over, the gain is shown, and no guard prevents it."""
    return (
        state.phase is Phase.PROGRESSING
        and situation.connected
        and facts.complete
        and not is_stale(state, facts, situation)
        and situation.now >= soak_end(state, situation)
        and _gain_is_shown(state, facts, situation)
        and _guards_are_content(facts)
    )


def _guards_are_content(facts: ClassFacts) -> bool:
    """Whether each guard passes, does not apply, or has a limit that the control breaks as often. Servers that are slow
    for both arms are no evidence against speculation."""
    return all(guard.verdict in _CONTENT for guard in facts.guards)


def needs_gain(state: ClassState, spec: SpeculationPolicySpec) -> bool:
    """Whether the step has to show its gain again.

    The last of several steps does not, if all requests may speculate in it. Only the hold-back is left as a control
    there. Enough control answers would take fifty times the traffic, to show what the previous step has shown. Evidence
    against the gain still counts.
    """
    steps = spec.rollout.steps
    last = state.step + 1 >= len(steps)
    return not (last and state.step > 0 and steps[-1].share >= 1.0)


def _gain_is_shown(state: ClassState, facts: ClassFacts, situation: Situation) -> bool:
    if facts.gain.verdict is Verdict.NO_DATA:
        return not needs_gain(state, situation.spec)
    return facts.gain.verdict is Verdict.PASS


def soak_end(state: ClassState, situation: Situation) -> datetime:
    """The earliest time at which the class may leave its step: at least 1 s after the start of the step."""
    steps = situation.spec.rollout.steps
    soak = timedelta(seconds=max(steps[min(state.step, len(steps) - 1)].soak_seconds, 1))
    return max(state.since, situation.released) + soak


def is_stale(state: ClassState, facts: ClassFacts, situation: Situation) -> bool:
    """Whether the class has had no outcomes for `staleAfterSeconds`."""
    return situation.now >= stale_at(state, facts, situation)


def stale_at(state: ClassState, facts: ClassFacts, situation: Situation) -> datetime:
    """The time at which the class becomes stale if no further outcome arrives."""
    latest = max(state.since, situation.released)
    if facts.last_outcome_s is not None:
        latest = max(latest, datetime.fromtimestamp(facts.last_outcome_s, tz=situation.now.tzinfo))
    return latest + timedelta(seconds=situation.spec.rollback.stale_after_seconds)


def _trip(state: ClassState, facts: ClassFacts) -> Trip | None:
    if not state.speculates:
        return None
    return worst_trip(facts, guards=state.phase in _TRIPPED_BY_GUARDS)


def _rolled_back(state: ClassState, trip: Trip, situation: Situation) -> ClassState:
    retry_at = _retry_at(state, situation, since=situation.now)
    after = _entered(state, Phase.ROLLED_BACK, state.step, situation, retry_at=retry_at)
    return decided(state, after, trip.rule, f"{trip.message}; {_next_attempt(retry_at)}", trip.numbers)


def _next_attempt(retry_at: datetime | None) -> str:
    if retry_at is not None:
        return f"next attempt at {rfc3339(retry_at)}"
    return "no retry is left: an edit that concerns the class, or a new retryToken, clears it"


def _retry_at(state: ClassState, situation: Situation, *, since: datetime) -> datetime | None:
    """The time of the next attempt of a class that was rolled back at `since`; None if no retry is left."""
    rollback = situation.spec.rollback
    if state.retries >= rollback.max_retries:
        return None
    pause_s = min(rollback.cool_down_seconds * 2.0**state.retries, float(rollback.max_cool_down_seconds))
    return since + timedelta(seconds=pause_s)


def retries_back_at(state: ClassState, situation: Situation) -> datetime:
    """The time at which a promoted class regains all its retries.

    The wait is the longest possible cool-down, or the duration of a whole rollout if that is longer. It starts with the
    promotion, or with the end of a later hold. A failure after the wait has another cause.
    """
    soaks_s = sum(step.soak_seconds for step in situation.spec.rollout.steps)
    proof_s = max(situation.spec.rollback.max_cool_down_seconds, soaks_s)
    return max(state.since, situation.released) + timedelta(seconds=proof_s)


def _proven(state: ClassState, facts: ClassFacts, situation: Situation) -> ClassState:
    """The promoted class. It regains its retries after it has kept its thresholds for long enough. No transition."""
    seen = situation.connected and facts.complete and _guards_are_content(facts)
    if not state.retries or not seen or is_stale(state, facts, situation):
        return state
    if situation.now < retries_back_at(state, situation):
        return state
    return msgspec.structs.replace(state, retries=0)


def _retried(state: ClassState, facts: ClassFacts, situation: Situation) -> ClassState:
    """The next attempt if it is due. It does not start before all outcomes have been read."""
    due = state.retry_at is not None and situation.now >= state.retry_at
    if not due or not situation.connected or not facts.complete:
        return state
    after = initial(situation.spec, state.name, situation.now, retries=state.retries + 1)
    stricter = situation.spec.rollback.reenable_margin
    message = f"attempt {after.retries} of {situation.spec.rollback.max_retries}, thresholds {stricter:.3g} stricter"
    return decided(state, after, "Retry", message)


def rescheduled(state: ClassState, situation: Situation) -> ClassState:
    """The class after an edit of `rollback`. One that is rolled back may have retries left now, or none any more; its
    decision keeps its reason."""
    retry_at, decision = _retry_at(state, situation, since=state.since), state.last_decision
    if state.phase is not Phase.ROLLED_BACK or (retry_at is None) is (state.retry_at is None):
        return state
    if decision is not None:
        why = decision.message.rpartition("; ")[0]
        decision = msgspec.structs.replace(decision, message=f"{why}; {_next_attempt(retry_at)}")
    return msgspec.structs.replace(state, retry_at=retry_at, last_decision=decision)


def _refreshed(state: ClassState, facts: ClassFacts, situation: Situation) -> ClassState:
    has_news = facts.last_outcome_s is not None and facts.last_outcome_s > state.since.timestamp()
    if not has_news or not facts.complete or not situation.connected or is_stale(state, facts, situation):
        return state
    after = initial(situation.spec, state.name, situation.now, retries=state.retries)
    return decided(
        state, after, "OutcomesAgain", "outcomes arrive again: the rollout restarts", _silences(_silent_before(state))
    )


def _staled(state: ClassState, situation: Situation) -> ClassState:
    after = _entered(state, Phase.STALE, 0, situation)
    quiet_s = situation.spec.rollback.stale_after_seconds
    message = f"no outcomes of the class for {quiet_s} s: it decodes plainly"
    return decided(state, after, "StaleAfter", message, _silences(_silent_before(state) + 1.0))


def _entered(
    state: ClassState, phase: Phase, step: int, situation: Situation, *, retry_at: datetime | None = None
) -> ClassState:
    """The class in `phase` from now on."""
    return ClassState(
        name=state.name,
        phase=phase,
        share=share_of(situation.spec, phase, step),
        step=step,
        since=situation.now,
        retries=state.retries,
        retry_at=retry_at,
    )


def _long_unchecked(state: ClassState, facts: ClassFacts, situation: Situation) -> GuardFacts | None:
    """The parity guard, if checks of answers have not taken place for so long that the class goes back a step: twice
    the time after which their evidence is out of date. It is counted from the step's start."""
    guard, has_steps_back = facts.unchecked, state.phase is Phase.PROMOTED or state.step > 0
    if guard is None or not has_steps_back or not situation.connected or not facts.complete:
        return None
    since_s = max(guard.checked_s or 0.0, state.since.timestamp(), situation.released.timestamp())
    late_s = _UNCHECKED_WINDOWS * situation.spec.analysis.window_seconds
    return guard if situation.now.timestamp() - since_s >= late_s else None


def _stepped_back(state: ClassState, guard: GuardFacts, situation: Situation) -> ClassState:
    after = _entered(state, Phase.PROGRESSING, max(state.step - 1, 0), situation)
    message = f"{unchecked_words(guard)}: the class goes back a step until answers are compared"
    return decided(state, after, "ParityUnknown", message, NO_NUMBERS._replace(metric=guard.metric.value))


def _silent_before(state: ClassState) -> float:
    """The number of silences of the class up to its last decision, without a promotion between them."""
    last = state.last_decision
    return last.observed or 0.0 if last is not None and last.metric == SILENCES else 0.0


def _silences(count: float) -> Numbers:
    return NO_NUMBERS._replace(metric=SILENCES, observed=count)


def _promoted(state: ClassState, facts: ClassFacts, situation: Situation) -> ClassState:
    gain, last = facts.gain, state.step + 1 >= len(situation.spec.rollout.steps)
    phase = Phase.PROMOTED if last else Phase.PROGRESSING
    after = _entered(state, phase, state.step if last else state.step + 1, situation)
    numbers = Numbers(
        metric=E2E_CHANGE,
        observed=gain.change,
        bound=gain.bound,
        threshold=gain.threshold,
        samples=gain.speculative + gain.control,
    )
    return decided(state, after, "Promote", _gain_message(gain, situation) + without_data(facts), numbers)


def without_data(facts: ClassFacts) -> str:
    """The end of a message: the metrics that do not apply to a class; empty if all apply."""
    names = ", ".join(metric.value for metric in facts.not_applicable)
    return f"; not applicable, without data: {names}" if names else ""


def _gain_message(gain: GainFacts, situation: Situation) -> str:
    answers = f"({gain.speculative} and {gain.control} answers)"
    if gain.verdict is Verdict.NO_DATA:
        return f"the gain was shown at the previous step, and no later evidence contradicts it {answers}"
    return (
        f"speculative answers take {gain.change:+.1%} compared with the control's of the same period, at most "
        f"{gain.bound:+.1%} at {situation.spec.analysis.confidence:.0%} confidence, needed below "
        f"{gain.threshold:+.1%} {answers}"
    )


def decided(
    before: ClassState, after: ClassState, rule: str, message: str, numbers: Numbers = NO_NUMBERS
) -> ClassState:
    """`after`, with the decision for this transition in `last_decision`."""
    decision = LastDecision(
        time=rfc3339(after.since),
        rule=rule,
        name=after.name,
        from_phase=before.phase.value,
        to_phase=after.phase.value,
        share=after.share,
        message=message[:1024],
        **numbers._asdict(),
    )
    return msgspec.structs.replace(after, last_decision=decision)
