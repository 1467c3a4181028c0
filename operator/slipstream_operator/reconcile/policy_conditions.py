"""The conditions of a policy, with their reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.manifest.status import ConditionType, Phase

from slipstream_operator.reconcile.policy_facts import PolicyFacts
from slipstream_operator.reconcile.reasons import AT_REST, Finding, Reason, accepted, listed
from slipstream_operator.rollout.analysis.facts import ClassFacts, GainFacts, GuardFacts, Verdict
from slipstream_operator.rollout.analysis.metrics import Metric
from slipstream_operator.rollout.transitions import ClassState, Situation, is_stale, needs_gain, without_data
from slipstream_operator.rollout.trips import REASONS, error_words, unchecked_words, words
from slipstream_operator.status.conditions import rfc3339

_PAIR_FIELD = "spec.pair"
_ANALYSED = frozenset({Phase.PROGRESSING, Phase.PROMOTED})


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A class with its present state. `facts` is None if there are none since the class restarted."""

    state: ClassState
    facts: ClassFacts | None

    @property
    def speculates(self) -> bool:
        """Whether more than a negligible part of its requests speculates."""
        return self.state.speculates and not (self.facts is not None and self.facts.hardly_speculates)


def policy_conditions(
    facts: PolicyFacts, judged: Sequence[Judged], situation: Situation
) -> Iterator[tuple[ConditionType, Finding]]:
    """All conditions, in order."""
    yield ConditionType.ACCEPTED, accepted(facts.newest.problems, facts.good)
    yield ConditionType.READY, ready(facts)
    yield ConditionType.RESOLVED_REFS, _resolved(facts)
    yield ConditionType.PROGRESSING, _progressing(judged, situation)
    nothing = Reason.NO_DATA("no class is being analysed")
    yield ConditionType.ANALYSIS_CONCLUSIVE, nothing if facts.connected is None else _conclusive(judged, situation)
    yield ConditionType.ROLLED_BACK, _rolled_back(judged)
    yield ConditionType.SERVERS_SLOW, _servers_slow(judged)
    yield ConditionType.HELD, held(facts)
    yield ConditionType.KILL_SWITCH_ACTIVE, _killed(facts)


def ready(facts: PolicyFacts) -> Finding:
    """Whether the policy is in effect. One that is disabled, or whose pair has no servers by its spec, is."""
    if facts.policy is None:
        return Reason.INVALID_SPEC(listed(facts.problems) or "the spec is invalid")
    if facts.problems or facts.pair is None:
        return Reason.UNRESOLVED(listed(facts.problems) or _no_pair(facts.policy))
    if not facts.policy.spec.enabled:
        return Reason.DISABLED()
    if not facts.pair_ready:
        return Reason.PAIR_NOT_READY(facts.policy.spec.pair)
    if facts.pair_at_zero:
        return Reason.PAIR_SCALED_TO_ZERO(facts.policy.spec.pair)
    ignored = f"; fields that this version does not know are ignored: {', '.join(facts.ignored)}"
    return Reason.IN_FORCE(facts.policy.spec.pair, ignored if facts.ignored else "")


def held(facts: PolicyFacts) -> Finding:
    """Whether something holds the classes at their steps. See `Situation`."""
    if facts.killed is not None:
        return Finding("True", Reason.KILLED, facts.killed)
    found = ready(facts)
    if found.status != "True" or found.reason in AT_REST:
        return found._replace(status="True")
    return Reason.NOT_HELD() if facts.servers_current else Reason.OLD_SERVERS()


def waiting_for(state: ClassState, facts: ClassFacts, situation: Situation) -> list[str]:
    """The evidence that is missing to judge a class at its step, with numbers; empty if none is missing."""
    missing = _missing_guards(facts)
    counts = [(guard.seen, guard.required) for guard in facts.guards if guard.verdict is Verdict.NO_DATA]
    if needs_gain(state, situation.spec) and facts.gain.verdict is Verdict.NO_DATA:
        missing.append(_missing_gain(facts.gain))
        counts.append((min(facts.gain.speculative, facts.gain.control), facts.gain.required))
    if missing:
        missing[-1] += _pace(counts, state.since, situation.now)
    return missing


def _pace(counts: Sequence[tuple[int, int]], since: datetime, now: datetime) -> str:
    """How long the missing answers take at their rate since the step began, at `since`. Where some of them have not
    come at all there is no rate, and the text has `since`. `counts` are (seen, required). Empty if none is missing."""
    missing = [(seen, required) for seen, required in counts if seen < required]
    passed_s = (now - since).total_seconds()
    if not missing or passed_s <= 0.0:
        return ""
    if any(seen == 0 for seen, _ in missing):
        return f" (since {rfc3339(since)})"
    left_s = max((required - seen) / seen * passed_s for seen, required in missing)
    return f" (about {_span(left_s)} more at the present rate)"


def _span(seconds: float) -> str:
    for unit, unit_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _missing_gain(gain: GainFacts) -> str:
    return f"{gain.speculative} speculative and {gain.control} control answers of {gain.required} each"


def _missing_guards(facts: ClassFacts) -> list[str]:
    open_verdicts = (Verdict.NO_DATA, Verdict.UNCLEAR, Verdict.DISPUTED, Verdict.OUTDATED)
    return [_missing_guard(guard) for guard in facts.guards if guard.verdict in open_verdicts]


def _missing_guard(guard: GuardFacts) -> str:
    if guard.is_unchecked:
        return f"{guard.metric.value}: {unchecked_words(guard)}"
    if guard.verdict is Verdict.DISPUTED:
        return f"{guard.metric.value}: one group of keys decides whether the limit is broken"
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


def _resolved(facts: PolicyFacts) -> Finding:
    if facts.policy is None:
        return Reason.INVALID_SPEC("the spec is invalid, see Ready")
    blamed = [problem for problem in facts.problems if problem.path == _PAIR_FIELD]
    if facts.pair is None:
        return Reason.PAIR_NOT_FOUND(listed(blamed) or _no_pair(facts.policy))
    if blamed:
        return Reason.UNRESOLVED(listed(blamed))
    return Reason.RESOLVED(f"ModelPair {facts.policy.spec.pair} is there")


def _progressing(judged: Sequence[Judged], situation: Situation) -> Finding:
    moving = [one.state for one in judged if one.state.phase is Phase.PROGRESSING]
    if not judged:
        return Reason.NO_CLASSES()
    if not moving:
        return _complete(judged)
    steps = situation.spec.rollout.steps
    where = [f"{state.name} at step {state.step + 1} of {len(steps)} ({state.share:.3g})" for state in moving]
    if situation.held is not None:
        return Reason.HELD(listed(where), situation.held)
    return Reason.ROLLING_OUT(listed(where))


def _complete(judged: Sequence[Judged]) -> Finding:
    """The finding that no class is being rolled out. It has another reason if gateways decide plain for all classes
    that may speculate."""
    hardly = [one.state.name for one in judged if one.state.speculates and not one.speculates]
    if not hardly:
        return Reason.COMPLETE("no class is being rolled out")
    message = f"no class is being rolled out; gateways decide plain for nearly every request of {listed(hardly)}"
    return (Reason.COMPLETE if any(one.speculates for one in judged) else Reason.DECIDED_PLAIN)(message)


def _conclusive(judged: Sequence[Judged], situation: Situation) -> Finding:
    """Whether the measurements suffice to judge the classes that speculate. Those without outcomes do not count beside
    others."""
    if not situation.connected:
        return Reason.STORE_UNREACHABLE()
    after_s = situation.spec.rollback.stale_after_seconds
    stale = [one.state.name for one in judged if one.state.phase is Phase.STALE]
    silent = [one.state.name for one in judged if _is_silent(one, situation)]
    active = [one for one in judged if one.state.phase in _ANALYSED and one.state.name not in silent]
    if not active:
        if stale:
            return Reason.STALE(after_s, listed(stale))
        if silent:
            return Reason.NO_DATA(f"no outcomes for {after_s} s of {listed(silent)}: failMode hold keeps their phase")
        return Reason.NO_DATA("no class is being analysed")
    unheard = f"no outcomes for {after_s} s of {listed(sorted(stale + silent))}" if stale or silent else ""
    lacking = [f"{one.state.name} has {'; '.join(missing)}" for one in active if (missing := _missing(one, situation))]
    if lacking:
        is_unchecked = any(one.facts is not None and one.facts.unchecked is not None for one in active)
        reason = Reason.PARITY_UNKNOWN if is_unchecked else Reason.INSUFFICIENT_SAMPLES
        return reason("; ".join(filter(None, [listed(lacking), unheard])))
    idle = [
        f"{one.state.name}{without}" for one in active if one.facts is not None and (without := without_data(one.facts))
    ]
    enough = f"every guard of {len(active)} classes has enough answers"
    return Reason.CONCLUSIVE("; ".join(filter(None, [enough, listed(idle), unheard])))


def _is_silent(one: Judged, situation: Situation) -> bool:
    """Whether a class is kept in its phase without outcomes."""
    if one.facts is None or situation.held is not None or one.state.phase not in _ANALYSED:
        return False
    return is_stale(one.state, one.facts, situation)


def _missing(one: Judged, situation: Situation) -> list[str]:
    """The missing evidence. For a promoted class only the guards count; the comparison was needed for its promotion."""
    if one.facts is None:
        return ["no answers since it restarted"]
    if one.state.phase is Phase.PROGRESSING:
        return waiting_for(one.state, one.facts, situation)
    return _missing_guards(one.facts)


def _rolled_back(judged: Sequence[Judged]) -> Finding:
    back = [one.state for one in judged if one.state.phase is Phase.ROLLED_BACK]
    if not back:
        return Reason.NOT_ROLLED_BACK()
    latest = max(back, key=lambda state: state.since)
    decision = latest.last_decision
    reason = REASONS.get(decision.rule, Reason.ROLLED_BACK) if decision else Reason.ROLLED_BACK
    said = [f"{one.name}: {one.last_decision.message if one.last_decision else 'see events'}" for one in back]
    return Finding("True", reason, listed(said, " | "))


def _servers_slow(judged: Sequence[Judged]) -> Finding:
    """Whether both arms break a limit on times or errors: a rollback would not help."""
    said = [
        f"{one.state.name}: {broken}"
        for one in judged
        if one.facts is not None and one.state.speculates
        for broken in _shared(one.facts)
    ]
    if not said:
        return Reason.LIMITS_KEPT()
    return Reason.LIMITS_BROKEN(listed(said))


def _shared(facts: ClassFacts) -> Iterator[str]:
    """The limits that both arms break."""
    if facts.errors.verdict is Verdict.SHARED:
        yield error_words(facts.errors)
    for guard in facts.guards:
        if guard.verdict is Verdict.SHARED:
            yield words(guard).removesuffix(",")


def _killed(facts: PolicyFacts) -> Finding:
    if facts.killed is None:
        return Reason.NOT_KILLED()
    gateways = facts.gateways
    counted = f"{gateways.synced} of {gateways.total} gateways apply this spec"
    everywhere = gateways.synced == gateways.total > 0
    return (Reason.KILLED_EVERYWHERE if everywhere else Reason.KILLED)(facts.killed, counted)
