"""The record of one class: guards, the comparison of a step, and the latest figures."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from slipstream_core.manifest.status import Phase
from slipstream_core.observation import Observation, ParityResult, cost_of
from slipstream_core.types import Arm, Reason

from slipstream_operator.rollout.analysis.facts import (
    MISSED,
    ClassFacts,
    ClassMemory,
    GainFacts,
    GuardFacts,
    LossFacts,
    Verdict,
)
from slipstream_operator.rollout.analysis.guard import Guard
from slipstream_operator.rollout.analysis.metrics import (
    COMPARED,
    Metric,
    Rule,
    Terms,
)
from slipstream_operator.rollout.analysis.outcomes import Kind
from slipstream_operator.rollout.analysis.paired import PairedTimes
from slipstream_operator.rollout.analysis.verdicts import blamed, control_needed, error_facts, loss
from slipstream_operator.rollout.analysis.window import Window, bin_of
from slipstream_operator.status.conditions import seconds_of

HARDLY = 0.9
"""A class hardly speculates, in any phase, if gateways decide plain for this share of its answers."""
NOT_APPLICABLE_AFTER = 3
"""A guard does not apply after this many times `minSamples` answers, none of which the guard can judge."""
_UNCHECKED = {Verdict.PASS: Verdict.OUTDATED, Verdict.NOT_APPLICABLE: Verdict.NO_DATA}
"""The verdict on parity where checks do not take place."""
_OVER = {Phase.ROLLED_BACK, Phase.DISABLED}


class ClassRecord(msgspec.Struct, kw_only=True, array_like=True):
    """The accumulators of a class, written into the checkpoint as they are.

    `memory` is the state of the class. Requests that began before `begun_s` are no evidence at all, and those that
    began before `step_s` do not count for the comparisons; both are in seconds since 1970. The usual share of the
    control has been in force since `share_s`; earlier requests count with the share of an alarm alone. `times` compares
    end-to-end times, `costs` compares costs, and `first_tokens` compares the times to the first token of streamed
    answers if the policy has a `ttftIncrease`. `answers` counts the speculative answers since the guards began, and
    `priced` those of them with a cost. `missed` counts the parity checks that did not take place since the last one, at
    `checked_s`.
    """

    window_seconds: int
    memory: ClassMemory | None = None
    begun_s: float = -math.inf
    step_s: float = -math.inf
    last_outcome_s: float | None = None
    explorations: int = 0
    guards: dict[Metric, Guard] = {}
    times: PairedTimes = msgspec.field(default_factory=PairedTimes)
    costs: PairedTimes = msgspec.field(default_factory=PairedTimes)
    speculative: Window | None = None
    control: Window | None = None
    answers: int = 0
    priced: int = 0
    first_tokens: PairedTimes | None = None
    missed: int = 0
    checked_s: float | None = None
    share_s: float = -math.inf

    def add(self, seen: Observation, kind: Kind, terms: Terms, time_s: float, *, from_s: float = -math.inf) -> None:
        """Record an outcome that ended at `time_s`. An outcome whose request began before `from_s` is no evidence."""
        if self.last_outcome_s is None or time_s > self.last_outcome_s:
            self.last_outcome_s = time_s
        start_s = time_s - seen.e2e_s
        if start_s < max(self.begun_s, from_s) or kind is Kind.HEARD:
            return
        if kind is Kind.ANSWER and seen.arm is Arm.CONTROL:
            self._add_control(seen, terms, time_s, start_s)
        elif kind is Kind.ANSWER:
            self._add_speculative(seen, terms, time_s, start_s)
        elif kind is Kind.CONTROL_FAILURE:
            self._compare(Metric.ERROR_RATE, 1.0)
            if bucket := self._windows()[1].at(time_s):
                bucket.failures += 1
        elif kind is Kind.DECLINED:
            if bucket := self._windows()[0].at(time_s):
                bucket.declined += 1
        elif kind is Kind.PARITY:
            self.missed, self.checked_s = 0, max(time_s, self.checked_s or 0.0)
            self._bet(Metric.PARITY, float(seen.parity == ParityResult.MISMATCH), terms)
        elif kind is Kind.PARITY_MISSED:
            self.missed += 1
        else:
            if seen.reason is Reason.EXPLORATION:
                self.explorations += 1
            self._bet(Metric.ERROR_RATE, float(kind is Kind.FAILURE), terms)
            if bucket := self._windows()[0].at(time_s):
                bucket.failures += kind is Kind.FAILURE
                bucket.others += kind is Kind.OTHER_ANSWER

    def stand(self, memory: ClassMemory) -> None:
        """Set the state of the class to `memory`, and drop the evidence that no longer counts.

        Guards restart only with a new spec and after a rollback. Otherwise they would never judge a class that is
        silent between bursts.
        """
        before, self.memory = self.memory, memory
        since_s = seconds_of(memory.since, 0.0)
        if before is None and self.last_outcome_s is None:  # earlier evidence was judged before, and is lost
            self.begun_s = self.step_s = since_s
        if before is None or memory == before:
            return
        began_again = before.phase in _OVER and memory.phase not in _OVER
        if began_again or not before.is_of_spec(memory) or memory.retries > before.retries:
            self.begun_s = since_s
            self.guards, self.explorations, self.answers, self.priced = {}, 0, 0, 0
            self.missed, self.checked_s = 0, None
            self.times, self.costs, self.first_tokens = PairedTimes(), PairedTimes(), None
            self.speculative = None
        elif (before.step, before.since) == (memory.step, memory.since):
            if before.hold_back_since != memory.hold_back_since:
                self._share_anew(seconds_of(memory.hold_back_since, 0.0))
            return
        self.step_s = since_s
        for times in self._comparisons():
            times.begin_step()

    def _share_anew(self, since_s: float) -> None:
        """Start a new block, since requests from `since_s` on are assigned with another share of the control. In a
        block with earlier and later requests, the arm with the increased share would have more of the later ones, and
        their load."""
        self.share_s = since_s
        for times in self._comparisons():
            times.empty()
        for metric in COMPARED.keys() & self.guards.keys():
            self.guards[metric].begin_comparison()

    def facts(self, terms: Terms, now_s: float) -> ClassFacts:
        """The facts of the class at `now_s`."""
        speculative, control = (window.recent(now_s) for window in self._windows())
        declined, others = speculative.declined, speculative.requests + control.requests
        guards, gain = tuple(self._guard_facts(rule, terms, now_s) for rule in terms.rules), self._gain(terms)
        return ClassFacts(
            memory=self.memory,
            guards=guards,
            errors=error_facts(speculative, control, terms.error_rate),
            gain=gain,
            loss=loss(self.times, terms, threshold=terms.margin, allowed=0.0),
            ttft_loss=self._ttft_loss(terms),
            speculative=speculative.figures,
            control=control.figures,
            decided_plain=_share(declined, others),
            hardly_speculates=declined >= max(terms.min_samples, HARDLY * (declined + others)),
            control_needed=control_needed(gain, guards, max(times.doubt for times in self._comparisons())),
            explorations=self.explorations,
            last_outcome_s=self.last_outcome_s,
            e2e=speculative.e2e,
            accepts=speculative.accepts,
            acceptance=speculative.acceptance,
        )

    def _add_control(self, seen: Observation, terms: Terms, time_s: float, start_s: float) -> None:
        self._pair(seen, terms, start_s, control=True)
        self._compare(Metric.ERROR_RATE, 0.0)
        for metric, x in _broken(seen, terms):
            self._compare(metric, x)
        _figures(self._windows()[1], seen, time_s)

    def _add_speculative(self, seen: Observation, terms: Terms, time_s: float, start_s: float) -> None:
        self.answers += 1
        self._bet(Metric.ERROR_RATE, 0.0, terms)
        if seen.drafted > 0:
            self._bet(Metric.ACCEPTANCE, seen.accepted / seen.drafted, terms)
        for metric, x in _broken(seen, terms):
            self._bet(metric, x, terms)
        self._pair(seen, terms, start_s, control=False)
        _figures(self._windows()[0], seen, time_s)

    def _pair(self, seen: Observation, terms: Terms, start_s: float, *, control: bool) -> None:
        """Add an answer to the comparisons, if it began early enough. The control's costs and times to the first token
        are raised by the allowed increase, so only a larger increase is a loss. The prompt's length explains a part of
        the time to the first token."""
        if start_s < (self.step_s if seen.alarmed else max(self.step_s, self.share_s)):
            return
        arm = {"control": control, "alarmed": seen.alarmed}
        self.times.add(seen.e2e_s, seen.output_tokens, **arm)
        rule, cost = terms.rule(Metric.COST), cost_of(seen)
        if rule is not None and cost:
            self.priced += not control
            self.costs.add(cost * (1.0 + rule.threshold if control else 1.0), seen.output_tokens, **arm)
        if terms.ttft_increase is None or seen.ttft_s is None:
            return
        if self.first_tokens is None:
            self.first_tokens = PairedTimes()
        allowed = 1.0 + terms.ttft_increase if control else 1.0
        self.first_tokens.add(seen.ttft_s * allowed, max(seen.prompt_tokens, 1), **arm)

    def _comparisons(self) -> Iterator[PairedTimes]:
        yield from (self.times, self.costs)
        if self.first_tokens is not None:
            yield self.first_tokens

    def _ttft_loss(self, terms: Terms) -> LossFacts | None:
        if terms.ttft_increase is None or self.first_tokens is None:
            return None
        return loss(self.first_tokens, terms, threshold=0.0, allowed=terms.ttft_increase)

    def _compare(self, metric: Metric, x: float) -> None:
        if guard := self.guards.get(metric):
            guard.compare(x)

    def _bet(self, metric: Metric, x: float, terms: Terms) -> None:
        rule = terms.rule(metric)
        if rule is None:
            return
        guard = self.guards.get(metric)
        if guard is None:
            guard = self.guards[metric] = Guard()
        rule.bet(guard, x, alarm_at=terms.alarm_at, latched=not (rule.compared and terms.controlled))

    def _windows(self) -> tuple[Window, Window]:
        """The windows of the two arms. A missing window, or one of another length, is replaced by an empty one."""
        if self.speculative is None or self.speculative.seconds != self.window_seconds:
            self.speculative = Window(seconds=self.window_seconds)
        if self.control is None or self.control.seconds != self.window_seconds:
            self.control = Window(seconds=self.window_seconds)
        return self.speculative, self.control

    def _cost_facts(self, rule: Rule, terms: Terms) -> GuardFacts:
        began = self.costs.began
        found = self.costs.found_loss(terms.alarm_at, margin=terms.margin)
        blocks, seen = found or began, min(began.speculative, began.control)
        if found is not None:
            verdict = Verdict.FAIL
        else:
            verdict = Verdict.PASS if seen >= rule.min_samples else self._verdict_without(self.priced, terms)
        return GuardFacts(
            metric=rule.metric,
            verdict=verdict,
            observed=(1.0 + blocks.change(blocks.difference)) * (1.0 + rule.threshold) - 1.0 if blocks.n else None,
            limit=rule.limit,
            threshold=rule.threshold,
            samples=blocks.speculative,
            seen=seen,
            required=rule.min_samples,
            control=blocks.control,
        )

    def _guard_facts(self, rule: Rule, terms: Terms, now_s: float) -> GuardFacts:
        if rule.metric is Metric.COST:
            return self._cost_facts(rule, terms)
        guard = self.guards.get(rule.metric) or Guard()
        found = GuardFacts(
            metric=rule.metric,
            verdict=self._verdict(guard, rule, terms),
            observed=guard.observed,
            limit=rule.limit,
            threshold=rule.threshold,
            samples=guard.run_samples,
            seen=guard.samples,
            required=rule.min_samples,
            statistic=guard.statistic,
            alarm_at=terms.alarm_at,
            control=guard.control,
            control_observed=guard.control_total / guard.control if guard.control else None,
        )
        return found if rule.metric is not Metric.PARITY else self._as_checked(found, terms, now_s)

    def _as_checked(self, parity: GuardFacts, terms: Terms, now_s: float) -> GuardFacts:
        """The parity guard, which does not pass on old evidence, nor for want of any, where checks do not take
        place."""
        is_late = self.checked_s is None or now_s - self.checked_s >= terms.window_seconds
        is_unchecked = is_late and self.missed >= MISSED
        return msgspec.structs.replace(
            parity,
            missed=self.missed,
            checked_s=self.checked_s,
            is_unchecked=is_unchecked,
            verdict=_UNCHECKED.get(parity.verdict, parity.verdict) if is_unchecked else parity.verdict,
        )

    def _verdict(self, guard: Guard, rule: Rule, terms: Terms) -> Verdict:
        if guard.alarm:
            return blamed(guard, rule.limit, rule.compared) if rule.compared and terms.controlled else Verdict.FAIL
        if guard.samples >= rule.min_samples:
            return Verdict.PASS
        return self._verdict_without(guard.samples, terms)

    def _verdict_without(self, eligible: int, terms: Terms) -> Verdict:
        """The verdict of a guard without enough answers. `eligible` counts the answers that it can judge now or
        later."""
        unseen = not eligible and self.answers >= NOT_APPLICABLE_AFTER * terms.min_samples
        return Verdict.NOT_APPLICABLE if unseen else Verdict.NO_DATA

    def _gain(self, terms: Terms) -> GainFacts:
        step, threshold = self.times.step, -terms.margin
        bound = self.times.upper_change(confidence=terms.confidence, tuned_for=terms.min_samples)
        verdict = Verdict.NO_DATA
        speculative, control = self.times.step_speculative, self.times.step_control
        if min(speculative, control) >= terms.min_samples and bound is not None:
            verdict = Verdict.PASS if bound < threshold else Verdict.FAIL
        return GainFacts(
            verdict=verdict,
            speculative=speculative,
            control=control,
            required=terms.min_samples,
            change=step.change(step.difference) if step.n else None,
            bound=bound,
            threshold=threshold,
        )


def _share(declined: int, others: int) -> float | None:
    """The share of answers for which speculation would not have paid. It is rounded to whole percents, since each
    change causes a write of the status."""
    return round(declined / (declined + others), 2) if declined + others else None


def _broken(seen: Observation, terms: Terms) -> Iterator[tuple[Metric, float]]:
    """The limits on times that apply to an answer, each with 1 if it is broken, else 0."""
    for rule in terms.rules:
        if rule.metric is Metric.P95:
            yield Metric.P95, float(seen.e2e_s > rule.threshold)
        elif rule.metric is Metric.TTFT and seen.ttft_s is not None:
            yield Metric.TTFT, float(seen.ttft_s > rule.threshold)


def _figures(window: Window, seen: Observation, time_s: float) -> None:
    bucket = window.at(time_s)
    if bucket is None:
        return
    bucket.answers += 1
    bucket.e2e_s += seen.e2e_s
    index = bin_of(seen.e2e_s)
    bucket.e2e[index] = bucket.e2e.get(index, 0) + 1
    if seen.ttft_s is not None:
        index = bin_of(seen.ttft_s)
        bucket.ttft[index] = bucket.ttft.get(index, 0) + 1
    if seen.drafted > 0:
        bucket.accepts += 1
        bucket.acceptance += seen.accepted / seen.drafted
    if (cost := cost_of(seen)) is not None:
        bucket.costs += 1
        bucket.cost += cost
