"""The effect of speculation in live traffic: speculative answers against the randomly held-back control.

Both arms are requests that would have speculated, assigned at random, so that their difference is the effect and not
the selection. The control consists of held-back requests and of those beyond the share of a rollout. Explorations
belong to neither. Intervals are Welch's at 95 %. A step of a rollout changes the arms' shares, so that for a while they
come from different times of the day; the operator compares within a step.

A client knows the arm of an answer, and can end those that it likes less: the answers of one key prove nothing about
those of others. So the arms are compared within three groups of keys, and the effect is that of the group in the
middle: a median of means, which no single group can shift arbitrarily (Lerasle and Oliveira 2011). Two groups give one
interval that covers those of both; a single key is one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from zlib import crc32

import msgspec
from slipstream_core.observation import Observation, Subject
from slipstream_core.types import TREATMENT, Arm, Reason

from slipstream_gateway.decide.estimate.moments import ArmSamples, Comparison, Sample
from slipstream_gateway.decide.estimate.outcomes import is_plausible
from slipstream_gateway.decide.estimate.student import quantile_975

# When an arm has this many answers, both are halved: old traffic fades, by the same share in both arms, so that they
# stay comparable while the load changes.
_MAX_TREATED, _MAX_CONTROL = 20_000.0, 2_000.0
_MAX_PAIRS, _MAX_CLASSES = 64, 128
_MIN_ANSWERS = 2.0
_GROUPS = 3
# So many keys of a class are kept apart; those that come later share this many places.
_MAX_KEYS, _SHARED_PLACES = 32, 8
ByKey = dict[str, Comparison]
"""A class's comparisons by the key of the requests."""
_NOTHING: Mapping[str, ByKey] = MappingProxyType({})
Measure = Callable[[ArmSamples], Sample]


class TreatmentEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of both arms: seconds, or a price. `speculative_n` and `control_n` are answers after fading.

    `difference` is speculative minus control, within `ci_low`..`ci_high`; `speed_up` is control over speculative, with
    its own interval on a logarithmic scale. All figures are of the middle group of keys. A figure without enough data
    is None, never 0.
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


class ServerTimeSaved(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of the servers' time that the speculative answers since the start have saved, against `plain_s`, what
    they would have taken by the control's mean. `low` and `high` bound the 95 % interval; negative: lost."""

    seconds: float
    low: float
    high: float
    plain_s: float


class ClassEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The measured effect in a request class. `cost` is the price of the servers' time per answer (see `Observation`);
    its figures are None if a price is unknown, and those of `server_s`, that time, if the servers do not report it.
    Counts are of answers since the start."""

    request_class: str
    speculative: int
    control: int
    exploration: int
    ttft_s: TreatmentEffect
    tpot_s: TreatmentEffect
    e2e_s: TreatmentEffect
    cost: TreatmentEffect
    server_s: TreatmentEffect
    saved: ServerTimeSaved | None


class ArmComparisons:
    """The comparison per pair and request class. Not thread-safe: it belongs to one event loop."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, ByKey]] = {}

    def record(self, observation: Observation) -> None:
        """Records a finished request; failed ones and those of neither arm are ignored. Never raises.

        Those that were drawn under an alarm are counted, but have no part in the means: the control had a larger share
        of them, so that the slow times of an alarm would seem to be the control's.
        """
        seen = observation
        treated = seen.arm is Arm.SPECULATIVE and seen.reason in TREATMENT
        explored = seen.arm is Arm.SPECULATIVE and seen.reason is Reason.EXPLORATION
        if not (treated or explored or seen.arm is Arm.CONTROL) or not is_plausible(seen):
            return
        comparison = self._comparison(seen.subject, seen.request_class)
        if explored:
            comparison.explorations += 1
        elif treated:
            comparison.speculatives += 1
        else:
            comparison.controls += 1
        if not explored and not seen.alarmed:
            (comparison.speculative if treated else comparison.control).add(seen)
        _halve_when_full(comparison)

    def report(self, pair: str) -> list[ClassEvidence]:
        """The evidence per class of `pair`, sorted by class; empty without any."""
        return [evidence_of(name, found) for name, found in sorted(self.comparisons(pair).items())]

    def comparisons(self, pair: str) -> Mapping[str, ByKey]:
        """The raw data of the report of `pair`, by class and key."""
        return self._pairs.get(pair, _NOTHING)

    def _comparison(self, subject: Subject, request_class: str) -> Comparison:
        classes = self._pairs.get(subject.pair)
        if classes is None:
            if len(self._pairs) >= _MAX_PAIRS:
                del self._pairs[next(iter(self._pairs))]
            classes = self._pairs[subject.pair] = {}
        found = classes.get(request_class)
        if found is None:
            if len(classes) >= _MAX_CLASSES:
                del classes[next(iter(classes))]
            found = classes[request_class] = {}
        key = subject.key
        if key not in found and len(found) >= _MAX_KEYS:
            key = f"shared {crc32(key.encode()) % _SHARED_PLACES}"
        return found.setdefault(key, Comparison())


def evidence_of(request_class: str, found: ByKey) -> ClassEvidence:
    """The evidence in the comparisons of a class."""
    groups = groups_of(found.values())
    return evidence_by(partial(effect_of, groups), request_class, groups)


def evidence_by(
    effect: Callable[[Measure], TreatmentEffect], request_class: str, counted: Sequence[Comparison]
) -> ClassEvidence:
    """The `effect` in every measure, and the answers in the comparisons `counted`."""
    speculatives, server_s = sum(one.speculatives for one in counted), effect(lambda arm: arm.server_s)
    return ClassEvidence(
        request_class=request_class,
        speculative=speculatives,
        control=sum(one.controls for one in counted),
        exploration=sum(one.explorations for one in counted),
        ttft_s=effect(lambda arm: arm.ttft_s),
        tpot_s=effect(lambda arm: arm.tpot_s),
        e2e_s=effect(lambda arm: arm.e2e_s),
        cost=effect(lambda arm: arm.cost),
        server_s=server_s,
        saved=_saved(server_s, speculatives),
    )


def _saved(effect: TreatmentEffect, answers: int) -> ServerTimeSaved | None:
    if effect.difference is None or effect.ci_low is None or effect.ci_high is None or effect.control_mean is None:
        return None
    return ServerTimeSaved(
        seconds=-answers * effect.difference,
        low=-answers * effect.ci_high,
        high=-answers * effect.ci_low,
        plain_s=answers * effect.control_mean,
    )


def groups_of(found: Iterable[Comparison]) -> list[Comparison]:
    """The comparisons of all keys in at most three groups. The largest come first, each to the group with the fewest
    answers of the control, so that groups are of a size where keys permit it."""
    groups: list[Comparison] = []
    for one in sorted(found, key=lambda one: one.controls, reverse=True):
        if len(groups) < _GROUPS:
            groups.append(Comparison())
            group = groups[-1]
        else:
            group = min(groups, key=lambda group: group.controls)
        group.join(one)
    return groups


def middle(groups: Sequence[Comparison], measure: Measure) -> list[tuple[Sample, Sample]]:
    """Both arms' samples of the groups whose effect is the middle one: one group, or two; all of them joined if none
    has enough answers for itself."""
    arms = [(measure(group.speculative), measure(group.control)) for group in groups]
    known = [(one, other) for one, other in arms if min(one.n, other.n) >= _MIN_ANSWERS]
    if not known:
        speculative, control = Sample(), Sample()
        for one, other in arms:
            speculative.join(one)
            control.join(other)
        return [(speculative, control)]
    known.sort(key=lambda both: _ratio(*both))
    return known[(len(known) - 1) // 2 : len(known) // 2 + 1]


def effect_of(groups: Sequence[Comparison], measure: Measure) -> TreatmentEffect:
    """Speculative against control in one measure, by groups of keys."""
    effects = [treatment_effect(*both) for both in middle(groups, measure)]
    return effects[0] if len(effects) == 1 else _spanning(*effects)


def _ratio(speculative: Sample, control: Sample) -> float:
    """The speculative mean over the control's. Times and prices are not negative."""
    return speculative.mean / control.mean if control.mean > 0.0 else math.inf


def _spanning(one: TreatmentEffect, other: TreatmentEffect) -> TreatmentEffect:
    """The effect of two groups, each with the same weight: nothing tells which of them is the usual one, so that the
    interval covers both."""
    fields: dict[str, float | None] = {"speculative_n": 0.0, "control_n": 0.0}
    for name in TreatmentEffect.__struct_fields__:
        values = [getattr(one, name), getattr(other, name)]
        if None in values:
            fields[name] = None
        elif name.endswith("_n"):
            fields[name] = sum(values)
        elif name.endswith("_low"):
            fields[name] = min(values)
        elif name.endswith("_high"):
            fields[name] = max(values)
        else:
            fields[name] = math.sqrt(values[0] * values[1]) if name == "speed_up" else sum(values) / 2.0
    return msgspec.convert(fields, TreatmentEffect)


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
