"""The comparison of a new revision of a pair with the serving one: the evidence, and the facts that it gives.

Each request is assigned to one of the two at random, whatever its class and arm. Answer times are compared within
blocks of a class (see `paired`), so that neither busy hours nor another mix of classes look like a difference. The
blocks of all classes together show that the new revision is not slower; those of one class alone can show that it is.
The times of its first answers do not count: a server that has just started compiles kernels and fills its caches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import msgspec
from slipstream_core.manifest.rollout import Analysis, Thresholds
from slipstream_core.manifest.serving import Canary
from slipstream_core.observation import ALSO_FAILURES, PARITY, Observation, ParityResult

from slipstream_operator.rollout.analysis.content import ChangedContent, ContentComparison
from slipstream_operator.rollout.analysis.facts import MISSED, Verdict
from slipstream_operator.rollout.analysis.guard import Guard
from slipstream_operator.rollout.analysis.means import boundary
from slipstream_operator.rollout.analysis.metrics import Metric, rules_of
from slipstream_operator.rollout.analysis.outcomes import is_failure, kind_of
from slipstream_operator.rollout.analysis.paired import FEWEST_BLOCKS, Blocks, PairedTimes
from slipstream_operator.rollout.analysis.record import NOT_APPLICABLE_AFTER
from slipstream_operator.rollout.analysis.verdicts import blamed

_ANALYSIS = Analysis()
FEWEST_REPLAYS = 10
COLD_ANSWERS = 10
"""The number of the new revision's first answers whose times do not count."""
_REPLAYS_AWAITED = 10  # times `minSamples` answers, for a service of which few answers are comparable
_CONFIDENCE_CHANGED = 0.999  # of a verdict on one class among many
_LOADS_PER_DOUBLING = 4
_ALARM_AT = math.log(_ANALYSIS.false_alarm_requests)


class ChangedClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class in which the new revision is shown to differ. `change` is that of the mean, as a share."""

    name: str
    change: float
    samples: int


class RevisionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a new revision.

    `samples` and `serving_samples` count the timed answers of both. `change` is the change of the mean time of
    an answer as a share of the serving revision's, and `bound` is above it, at all times with 95 % confidence; both are
    None before there are enough answers. `errors` and `parity` are the verdicts on failed requests and on differing
    answers, of which `replays` were compared; each share beside them is None without requests. `slow` is the class with
    the largest shown increase of the time. `length_change` is the change of the mean number of output tokens over all
    classes, None before there are enough answers, and `length` the class with the largest shown one; `cost_change` and
    `cost` are those of the mean cost at the same load. `content` is the largest shown change of the content. For
    `is_content_kept` see `ContentComparison`.
    """

    samples: int = 0
    serving_samples: int = 0
    change: float | None = None
    bound: float | None = None
    errors: Verdict = Verdict.NO_DATA
    error_rate: float | None = None
    parity: Verdict = Verdict.NO_DATA
    parity_loss: float | None = None
    replays: int = 0
    slow: ChangedClass | None = None
    length_change: float | None = None
    length: ChangedClass | None = None
    cost_change: float | None = None
    cost: ChangedClass | None = None
    content: ChangedContent | None = None
    is_content_kept: bool = False


class RevisionLedger:
    """The evidence about `revision`, a new one of `pair`, since `begun_s` in seconds since 1970."""

    def __init__(self, *, pair: str, revision: str, canary: Canary, begun_s: float) -> None:
        self.pair, self.revision, self.canary = pair, revision, canary
        self._begun_s = begun_s
        self._cold = COLD_ANSWERS
        self._warm_s = begun_s
        limits = Thresholds(error_rate=canary.error_rate, parity_loss=canary.parity_loss)
        self._rules = {rule.metric: rule for rule in rules_of(limits, min_samples=canary.min_samples)}
        self._guards = {metric: Guard() for metric in self._rules}
        self._classes: dict[str, PairedTimes] = {}
        self._lengths: dict[str, PairedTimes] = {}
        self._costs: dict[str, PairedTimes] = {}
        self._content = ContentComparison(canary.max_content_change)
        self._missed = 0

    def is_of(self, revision: str, canary: Canary) -> bool:
        """Whether this is the evidence about `revision` with the limits of `canary`."""
        return revision == self.revision and _limits(canary) == _limits(self.canary)

    def record(self, seen: Observation, *, now_s: float) -> None:
        """Record an outcome; others than those of the comparison are ignored."""
        is_empty = seen.status == "ok" and not seen.output_tokens
        if (seen.subject.pair, seen.revision) != (self.pair, self.revision) or (kind_of(seen) is None and not is_empty):
            return
        if min(seen.time_s, now_s) - seen.e2e_s < self._begun_s:
            return
        if seen.status == PARITY:
            if seen.canary and seen.parity == ParityResult.MISSED:
                self._missed += 1
            elif seen.canary:
                self._bet(Metric.PARITY, float(seen.parity == ParityResult.MISMATCH))
        elif seen.status == "ok":
            self._count(seen, float(is_empty))  # else a revision that answers nothing would be fast
            if not is_empty:
                self._time(seen, now_s)
                self._measure(seen)
                self._content.record(seen)
        elif is_failure(seen) or seen.status in ALSO_FAILURES:
            self._count(seen, 1.0)

    def facts(self) -> RevisionFacts:
        """The facts so far."""
        errors, parity = self._guards[Metric.ERROR_RATE], self._guards[Metric.PARITY]
        change, bound = self._pooled(self._classes.values())
        length_change, _ = self._pooled(self._lengths.values())
        cost_change, _ = self._pooled(self._costs.values())
        longest = self.canary.max_length_change
        return RevisionFacts(
            samples=self._answers,
            serving_samples=sum(times.step_control for times in self._classes.values()),
            change=change,
            bound=bound,
            errors=self._verdict(Metric.ERROR_RATE),
            error_rate=errors.observed,
            parity=self._verdict(Metric.PARITY),
            parity_loss=parity.observed,
            replays=parity.samples,
            slow=self._most_changed(self._classes, above=self.canary.max_slowdown),
            length_change=length_change,
            length=self._most_changed(self._lengths, above=longest, below=-longest),
            cost_change=cost_change,
            cost=self._most_changed(self._costs, above=self.canary.max_cost_increase),
            content=self._content.changed,
            is_content_kept=self._content.is_kept(
                is_long=self._answers >= NOT_APPLICABLE_AFTER * self.canary.min_samples
            ),
        )

    @property
    def _answers(self) -> int:
        """The timed answers of the new revision."""
        return sum(times.step_speculative for times in self._classes.values())

    def _time(self, seen: Observation, now_s: float) -> None:
        """Count the time of an answer of either revision that began after the last cold answer ended."""
        ended_s = min(seen.time_s, now_s)  # the clock of a gateway may be fast
        if self._cold:
            self._cold -= seen.canary
            self._warm_s = ended_s
        elif ended_s - seen.e2e_s >= self._warm_s:
            times = self._classes.setdefault(seen.request_class, PairedTimes())
            times.add(seen.e2e_s, seen.output_tokens, control=not seen.canary)
            if seen.priced_s:
                costs = self._costs.setdefault(_at_load(seen), PairedTimes())
                costs.add(seen.priced_s * (seen.price_per_gpu_hour or 1.0), seen.output_tokens, control=not seen.canary)

    def _measure(self, seen: Observation) -> None:
        """Count the length of an answer of either revision."""
        lengths = self._lengths.setdefault(seen.request_class, PairedTimes())
        lengths.add(float(seen.output_tokens), 1, control=not seen.canary)

    def _count(self, seen: Observation, x: float) -> None:
        if seen.canary:
            self._bet(Metric.ERROR_RATE, x)
        else:
            self._guards[Metric.ERROR_RATE].compare(x)

    def _bet(self, metric: Metric, x: float) -> None:
        rule = self._rules[metric]
        rule.bet(self._guards[metric], x, alarm_at=_ALARM_AT, latched=rule.compared is None)

    def _verdict(self, metric: Metric) -> Verdict:
        guard, rule = self._guards[metric], self._rules[metric]
        if guard.alarm:
            return Verdict.FAIL if rule.compared is None else blamed(guard, rule.limit, rule.compared)
        needed = max(rule.min_samples, FEWEST_REPLAYS) if metric is Metric.PARITY else rule.min_samples
        if guard.samples >= needed:
            is_kept = guard.observed is None or guard.observed <= rule.limit
            return Verdict.PASS if is_kept else Verdict.NO_DATA  # not yet proof of either
        if metric is Metric.PARITY and self._missed >= MISSED:
            return Verdict.NO_DATA  # there are answers to compare, and too few were
        awaited = _REPLAYS_AWAITED if guard.samples else NOT_APPLICABLE_AFTER
        is_over = self._answers >= awaited * self.canary.min_samples and (guard.observed or 0.0) <= rule.limit
        return Verdict.NOT_APPLICABLE if is_over else Verdict.NO_DATA

    def _most_changed(
        self, compared: Mapping[str, PairedTimes], *, above: float, below: float = -math.inf
    ) -> ChangedClass | None:
        """The class with the largest change that is shown to be beyond the limits, at all times at once."""
        found, needed = [], self.canary.min_samples
        for name, times in compared.items():
            least = times.lower_change(confidence=_CONFIDENCE_CHANGED, tuned_for=needed)
            most = times.upper_change(confidence=_CONFIDENCE_CHANGED, tuned_for=needed)
            if least is not None and most is not None and (least > above or most < below):
                change = times.step.change(times.step.difference)
                found.append(ChangedClass(name=name, change=change, samples=times.step_speculative))
        return max(found, key=lambda one: abs(one.change), default=None)

    def _pooled(self, compared: Collection[PairedTimes]) -> tuple[float | None, float | None]:
        """The change over the blocks of all classes, and its upper bound. The variance of a block is about the same in
        all classes, since its unit is the block's mean."""
        blocks = Blocks()
        for one in compared:
            blocks.merge(one.step)
        if blocks.n < FEWEST_BLOCKS:
            return None, None
        variance = sum(one.step.weight * one.variance for one in compared if one.step.n)
        half = boundary(blocks.weight, confidence=_ANALYSIS.confidence, tuned_for=self.canary.min_samples / 2.0)
        spread = math.sqrt(variance / blocks.weight / blocks.weight)
        return blocks.change(blocks.difference), blocks.change(blocks.difference + half * spread)


def _at_load(seen: Observation) -> str:
    """The class of `seen` with its server's load, within 9 %. Requests share the steps of their server: an answer costs
    less on the revision whose servers get more requests, and the new one has few servers."""
    load = 2.0 ** (round(_LOADS_PER_DOUBLING * math.log2(max(seen.load, 1.0))) / _LOADS_PER_DOUBLING)
    return f"{seen.request_class} at {load:.2g} requests in flight"


def _limits(canary: Canary) -> tuple[float, ...]:
    """The settings that the evidence depends on."""
    return (
        canary.min_samples,
        canary.max_slowdown,
        canary.error_rate,
        canary.parity_loss,
        canary.max_length_change,
        canary.max_content_change,
        canary.max_cost_increase,
    )
