"""The effect of speculation in live traffic: speculative answers against the randomly held-back control.

Both arms are requests that would have speculated, assigned by a hash of their id, so that their difference is the
effect and not the selection. The control consists of held-back requests and of those beyond the share of a rollout.
Explorations belong to neither. Intervals are Welch's at 95 %. A step of a rollout changes the arms' shares, so that for
a while they come from different times of the day; the operator compares within a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from slipstream_core.observation import Observation
from slipstream_core.types import TREATMENT, Arm, Reason

from slipstream_gateway.decide.estimate.moments import Comparison, Sample
from slipstream_gateway.decide.estimate.outcomes import is_plausible
from slipstream_gateway.decide.estimate.student import quantile_975

# When an arm has this many answers, both are halved: old traffic fades, by the same share in both arms, so that they
# stay comparable while the load changes.
_MAX_TREATED, _MAX_CONTROL = 20_000.0, 2_000.0
_MAX_PAIRS, _MAX_CLASSES = 64, 128
_MIN_ANSWERS = 2.0
_NOTHING: Mapping[str, Comparison] = MappingProxyType({})


class TreatmentEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of both arms: seconds, or a price. `speculative_n` and `control_n` are answers after fading.

    `difference` is speculative minus control, within `ci_low`..`ci_high`; `speed_up` is control over speculative, with
    its own interval on a logarithmic scale. A figure without enough data is None, never 0.
    """

    speculative_n: float
    control_n: float
    speculative_mean: float | None
    control_mean: float | None
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    speed_up: float | None
    speed_up_low: float | None
    speed_up_high: float | None


class ClassEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The measured effect in a request class. `cost` is the price of the servers' time per answer (see `Observation`);
    its figures are None if a price is unknown. Counts are of answers since the start."""

    request_class: str
    speculative: int
    control: int
    exploration: int
    ttft_s: TreatmentEffect
    tpot_s: TreatmentEffect
    e2e_s: TreatmentEffect
    cost: TreatmentEffect


class ArmComparisons:
    """The comparison per pair and request class. Not thread-safe: it belongs to one event loop."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, Comparison]] = {}

    def record(self, observation: Observation) -> None:
        """Records a finished request; failed ones and those of neither arm are ignored. Never raises."""
        seen = observation
        treated = seen.arm is Arm.SPECULATIVE and seen.reason in TREATMENT
        explored = seen.arm is Arm.SPECULATIVE and seen.reason is Reason.EXPLORATION
        if not (treated or explored or seen.arm is Arm.CONTROL) or not is_plausible(seen):
            return
        comparison = self._comparison(seen.subject.pair, seen.request_class)
        if explored:
            comparison.explorations += 1
        elif treated:
            comparison.speculatives += 1
            comparison.speculative.add(seen)
        else:
            comparison.controls += 1
            comparison.control.add(seen)
        _halve_when_full(comparison)

    def report(self, pair: str) -> list[ClassEvidence]:
        """The evidence per class of `pair`, sorted by class; empty without any."""
        return [evidence_of(name, found) for name, found in sorted(self.comparisons(pair).items())]

    def comparisons(self, pair: str) -> Mapping[str, Comparison]:
        """The raw data of the report of `pair`, by class, for merging with other workers'."""
        return self._pairs.get(pair, _NOTHING)

    def _comparison(self, pair: str, request_class: str) -> Comparison:
        classes = self._pairs.get(pair)
        if classes is None:
            if len(self._pairs) >= _MAX_PAIRS:
                del self._pairs[next(iter(self._pairs))]
            classes = self._pairs[pair] = {}
        found = classes.get(request_class)
        if found is None:
            if len(classes) >= _MAX_CLASSES:
                del classes[next(iter(classes))]
            found = classes[request_class] = Comparison()
        return found


def evidence_of(request_class: str, found: Comparison) -> ClassEvidence:
    """The evidence in a comparison."""
    return ClassEvidence(
        request_class=request_class,
        speculative=found.speculatives,
        control=found.controls,
        exploration=found.explorations,
        ttft_s=treatment_effect(found.speculative.ttft_s, found.control.ttft_s),
        tpot_s=treatment_effect(found.speculative.tpot_s, found.control.tpot_s),
        e2e_s=treatment_effect(found.speculative.e2e_s, found.control.e2e_s),
        cost=treatment_effect(found.speculative.cost, found.control.cost),
    )


def _halve_when_full(found: Comparison) -> None:
    if found.speculative.e2e_s.n >= _MAX_TREATED or found.control.e2e_s.n >= _MAX_CONTROL:
        found.speculative.halve()
        found.control.halve()


def treatment_effect(speculative: Sample, control: Sample) -> TreatmentEffect:
    """Speculative against control in one measure."""
    difference = ci_low = ci_high = speed_up = speed_up_low = speed_up_high = None
    enough = speculative.n >= _MIN_ANSWERS and control.n >= _MIN_ANSWERS
    if enough:
        difference = speculative.mean - control.mean
        half = _half_width(speculative, control, 1.0, 1.0)
        ci_low, ci_high = difference - half, difference + half
    if enough and speculative.mean > 0.0 and control.mean > 0.0:
        log = math.log(control.mean / speculative.mean)
        half = _half_width(speculative, control, speculative.mean, control.mean)
        speed_up, speed_up_low, speed_up_high = math.exp(log), _exp(log - half), _exp(log + half)
    return TreatmentEffect(
        speculative_n=speculative.n,
        control_n=control.n,
        speculative_mean=speculative.mean if speculative.n > 0.0 else None,
        control_mean=control.mean if control.n > 0.0 else None,
        difference=difference,
        ci_low=ci_low,
        ci_high=ci_high,
        speed_up=speed_up,
        speed_up_low=speed_up_low,
        speed_up_high=speed_up_high,
    )


def _half_width(first: Sample, second: Sample, first_unit: float, second_unit: float) -> float:
    """Half of Welch's 95 % interval, each arm in units of its own; in units of its mean it is that of the log ratio
    (delta method)."""
    one, two = first.variance_of_mean / first_unit**2, second.variance_of_mean / second_unit**2
    total = one + two
    if total <= 0.0:
        return 0.0
    freedom = total * total / (one * one / (first.n - 1.0) + two * two / (second.n - 1.0))
    return quantile_975(freedom) * math.sqrt(total)


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))
