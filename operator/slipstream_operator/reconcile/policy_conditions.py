"""The conditions of a policy, with their reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.objects import ModelPair, SpeculationPolicy
from slipstream_core.manifest.status import ConditionType, GatewaysStatus, Phase

from slipstream_operator.reconcile.pair_conditions import Finding, listed
from slipstream_operator.rollout.analysis import ClassFacts, GainFacts, GuardFacts, Metric, Verdict
from slipstream_operator.rollout.transitions import ClassState, Situation, is_stale, needs_gain, without_data
from slipstream_operator.rollout.trips import REASONS, error_words, words
from slipstream_operator.status.conditions import Conditions

_MAX_LISTED = 5
_PAIR_FIELD = "spec.pair"


class PolicyReason(StrEnum):
    """The reasons of a policy's conditions.

    `Accepted`: Accepted (True); InvalidSpec (False).
    `Ready`: InForce (True); InvalidSpec, Unresolved, PairNotReady, Disabled (False).
    `ResolvedRefs`: Resolved (True); InvalidSpec, PairNotFound, Unresolved (False).
    `Progressing`: RollingOut (True); Held, Complete, DecidedPlain, NoClasses (False).
    `AnalysisConclusive`: Conclusive (True); InsufficientSamples, NoData, StoreUnreachable, Stale (False).
    `RolledBack`: those of `trips.REASONS` (True); NotRolledBack (False).
    `ServersSlow`: LimitsBroken (True); LimitsKept (False).
    `KillSwitchActive`: Killed and KilledEverywhere (True); NotKilled (False).
    """

    ACCEPTED = "Accepted"
    IN_FORCE = "InForce"
    INVALID_SPEC = "InvalidSpec"
    UNRESOLVED = "Unresolved"
    PAIR_NOT_FOUND = "PairNotFound"
    PAIR_NOT_READY = "PairNotReady"
    DISABLED = "Disabled"
    RESOLVED = "Resolved"
    ROLLING_OUT = "RollingOut"
    HELD = "Held"
    COMPLETE = "Complete"
    DECIDED_PLAIN = "DecidedPlain"
    NO_CLASSES = "NoClasses"
    CONCLUSIVE = "Conclusive"
    INSUFFICIENT_SAMPLES = "InsufficientSamples"
    NO_DATA = "NoData"
    STORE_UNREACHABLE = "StoreUnreachable"
    STALE = "Stale"
    NOT_ROLLED_BACK = "NotRolledBack"
    ROLLED_BACK = "RolledBack"
    LIMITS_BROKEN = "LimitsBroken"
    LIMITS_KEPT = "LimitsKept"
    KILLED = "Killed"
    KILLED_EVERYWHERE = "KilledEverywhere"
    NOT_KILLED = "NotKilled"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The policy and the state of its pair, gateways and outcome store. `policy` is None if its spec is invalid, see
    `accepted`. `killed` names the kill switch that is on."""

    policy: SpeculationPolicy | None
    accepted: Finding
    problems: tuple[Problem, ...]
    ignored: tuple[str, ...]
    pair: ModelPair | None
    pair_ready: bool
    killed: str | None
    gateways: GatewaysStatus
    connected: bool


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A class with its present state. `facts` is None if there are none since the class restarted."""

    state: ClassState
    facts: ClassFacts | None

    @property
    def speculates(self) -> bool:
        """Whether more than a negligible part of its requests speculates."""
        return self.state.speculates and not (self.facts is not None and self.facts.hardly_speculates)


def set_conditions(conditions: Conditions, subject: Subject, judged: Sequence[Judged], situation: Situation) -> None:
    """Set all eight conditions."""
    for type, said in (
        (ConditionType.ACCEPTED, subject.accepted),
        (ConditionType.READY, ready(subject)),
        (ConditionType.RESOLVED_REFS, _resolved(subject)),
        (ConditionType.PROGRESSING, _progressing(judged, situation)),
        (ConditionType.ANALYSIS_CONCLUSIVE, _conclusive(judged, situation)),
        (ConditionType.ROLLED_BACK, _rolled_back(judged)),
        (ConditionType.SERVERS_SLOW, _servers_slow(judged)),
        (ConditionType.KILL_SWITCH_ACTIVE, _killed(subject)),
    ):
        conditions.set(type, said.status, said.reason, said.message)


def ready(subject: Subject) -> Finding:
    """Whether the policy governs its pair's traffic."""
    if subject.policy is None:
        return Finding("False", PolicyReason.INVALID_SPEC, listed(subject.problems) or "the spec is invalid")
    if subject.problems or subject.pair is None:
        return Finding("False", PolicyReason.UNRESOLVED, listed(subject.problems) or _no_pair(subject.policy))
    if not subject.policy.spec.enabled:
        return Finding("False", PolicyReason.DISABLED, "spec.enabled is false: every request decodes plainly")
    if not subject.pair_ready:
        message = f"ModelPair {subject.policy.spec.pair} is not ready, see its status: its requests decode plainly"
        return Finding("False", PolicyReason.PAIR_NOT_READY, message)
    message = f"governs ModelPair {subject.policy.spec.pair}"
    if subject.ignored:
        message += f"; fields that this version does not know are ignored: {', '.join(subject.ignored)}"
    return Finding("True", PolicyReason.IN_FORCE, message)


def waiting_for(facts: ClassFacts, *, gain_needed: bool = True) -> list[str]:
    """The evidence that is missing to judge a class, with numbers; empty if none is missing."""
    missing = _missing_guards(facts)
    if gain_needed and facts.gain.verdict is Verdict.NO_DATA:
        missing.append(_missing_gain(facts.gain))
    return missing


def _missing_gain(gain: GainFacts) -> str:
    return f"{gain.speculative} speculative and {gain.control} control answers of {gain.required} each"


def _missing_guards(facts: ClassFacts) -> list[str]:
    return [_missing_guard(guard) for guard in facts.guards if guard.verdict in (Verdict.NO_DATA, Verdict.UNCLEAR)]


def _missing_guard(guard: GuardFacts) -> str:
    if guard.verdict is Verdict.UNCLEAR:
        return (
            f"{guard.metric.value}: the limit is broken; {guard.control} answers of the control are too few to compare"
        )
    what = {
        Metric.TTFT: "streamed answers",
        Metric.COST: "answers of either arm with a price",
        Metric.PARITY: "replayed answers",
        Metric.ERROR_RATE: "requests",
    }.get(guard.metric, "answers with drafts" if guard.metric is Metric.ACCEPTANCE else "answers")
    return f"{guard.metric.value}: {guard.seen} {what} of {guard.required}"


def _no_pair(policy: SpeculationPolicy) -> str:
    return f"there is no ModelPair {policy.spec.pair} in this namespace"


def _resolved(subject: Subject) -> Finding:
    if subject.policy is None:
        return Finding("False", PolicyReason.INVALID_SPEC, "the spec is invalid, see Ready")
    blamed = [problem for problem in subject.problems if problem.path == _PAIR_FIELD]
    if subject.pair is None:
        return Finding("False", PolicyReason.PAIR_NOT_FOUND, listed(blamed) or _no_pair(subject.policy))
    if blamed:
        return Finding("False", PolicyReason.UNRESOLVED, listed(blamed))
    return Finding("True", PolicyReason.RESOLVED, f"ModelPair {subject.policy.spec.pair} is there")


def _progressing(judged: Sequence[Judged], situation: Situation) -> Finding:
    moving = [one.state for one in judged if one.state.phase is Phase.PROGRESSING]
    if not judged:
        return Finding("False", PolicyReason.NO_CLASSES, "no outcomes have been received for any class")
    if not moving:
        return _complete(judged)
    steps = situation.spec.rollout.steps
    where = [f"{state.name} at step {state.step + 1} of {len(steps)} ({state.share:.3g})" for state in moving]
    if situation.held is not None:
        return Finding("False", PolicyReason.HELD, f"{_some(where)}; held: {situation.held}")
    return Finding("True", PolicyReason.ROLLING_OUT, _some(where))


def _complete(judged: Sequence[Judged]) -> Finding:
    """The finding that no class is being rolled out. It has another reason if gateways decide plain for all classes
    that may speculate."""
    hardly = [one.state.name for one in judged if one.state.speculates and not one.speculates]
    if not hardly:
        return Finding("False", PolicyReason.COMPLETE, "no class is being rolled out")
    message = f"no class is being rolled out; gateways decide plain for nearly every request of {_some(hardly)}"
    reason = PolicyReason.COMPLETE if any(one.speculates for one in judged) else PolicyReason.DECIDED_PLAIN
    return Finding("False", reason, message)


def _conclusive(judged: Sequence[Judged], situation: Situation) -> Finding:
    """Whether the measurements suffice to judge the classes that speculate."""
    if not situation.connected:
        message = "the outcome store cannot be reached, or has not been read to its end: every class keeps its phase"
        return Finding("False", PolicyReason.STORE_UNREACHABLE, message)
    stale = [one.state.name for one in judged if one.state.phase is Phase.STALE]
    if stale:
        quiet = f"no outcomes for {situation.spec.rollback.stale_after_seconds} s of {_some(stale)}"
        return Finding("False", PolicyReason.STALE, f"{quiet}: plain until outcomes arrive again")
    analysed = [one for one in judged if one.state.phase in (Phase.PROGRESSING, Phase.PROMOTED)]
    quiet_ones = [
        one.state.name
        for one in analysed
        if one.facts is not None and situation.held is None and is_stale(one.state, one.facts, situation)
    ]
    if quiet_ones:
        after = situation.spec.rollback.stale_after_seconds
        message = f"no outcomes for {after} s of {_some(quiet_ones)}: failMode hold keeps their phase"
        return Finding("False", PolicyReason.NO_DATA, message)
    if not analysed:
        return Finding("False", PolicyReason.NO_DATA, "no class is being analysed")
    lacking = [
        f"{one.state.name} has {'; '.join(missing)}" for one in analysed if (missing := _missing(one, situation))
    ]
    if lacking:
        return Finding("False", PolicyReason.INSUFFICIENT_SAMPLES, _some(lacking))
    idle = [
        f"{one.state.name}{without}"
        for one in analysed
        if one.facts is not None and (without := without_data(one.facts))
    ]
    said = "; ".join([f"every guard of {len(analysed)} classes has enough answers", *([_some(idle)] if idle else [])])
    return Finding("True", PolicyReason.CONCLUSIVE, said)


def _missing(one: Judged, situation: Situation) -> list[str]:
    """The missing evidence. For a promoted class only the guards count; the comparison was needed for its promotion."""
    if one.facts is None:
        return ["no answers since it restarted"]
    if one.state.phase is Phase.PROGRESSING:
        return waiting_for(one.facts, gain_needed=needs_gain(one.state, situation.spec))
    return _missing_guards(one.facts)


def _rolled_back(judged: Sequence[Judged]) -> Finding:
    back = [one.state for one in judged if one.state.phase is Phase.ROLLED_BACK]
    if not back:
        return Finding("False", PolicyReason.NOT_ROLLED_BACK, "no class is rolled back")
    latest = max(back, key=lambda state: state.since)
    decision = latest.last_decision
    reason = REASONS.get(decision.rule, PolicyReason.ROLLED_BACK) if decision else PolicyReason.ROLLED_BACK
    said = [f"{one.name}: {one.last_decision.message if one.last_decision else 'see events'}" for one in back]
    return Finding("True", reason, _some(said, " | "))


def _servers_slow(judged: Sequence[Judged]) -> Finding:
    """Whether both arms break a limit on times or errors: a rollback would not help."""
    said = [
        f"{one.state.name}: {broken}"
        for one in judged
        if one.facts is not None and one.state.speculates
        for broken in _shared(one.facts)
    ]
    if not said:
        return Finding("False", PolicyReason.LIMITS_KEPT, "no class breaks a limit on times or errors in both arms")
    return Finding("True", PolicyReason.LIMITS_BROKEN, f"the servers are slow or fail for both arms: {_some(said)}")


def _shared(facts: ClassFacts) -> Iterator[str]:
    """The limits that both arms break."""
    if facts.errors.verdict is Verdict.SHARED:
        yield error_words(facts.errors)
    for guard in facts.guards:
        if guard.verdict is Verdict.SHARED:
            yield words(guard).removesuffix(",")


def _killed(subject: Subject) -> Finding:
    if subject.killed is None:
        return Finding("False", PolicyReason.NOT_KILLED, "no kill switch is on")
    gateways = subject.gateways
    counted = f"{gateways.synced} of {gateways.total} gateways apply this spec"
    everywhere = gateways.synced == gateways.total > 0
    reason = PolicyReason.KILLED_EVERYWHERE if everywhere else PolicyReason.KILLED
    return Finding("True", reason, f"{subject.killed}: every request decodes plainly; {counted}")


def _some(parts: Sequence[str], separator: str = "; ") -> str:
    more = len(parts) - _MAX_LISTED
    return separator.join(parts[:_MAX_LISTED]) + (f"{separator}and {more} more" if more > 0 else "")
