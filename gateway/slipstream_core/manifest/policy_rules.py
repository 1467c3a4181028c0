"""Rules within one policy that its types cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.objects import ClassRule, SpeculationPolicySpec
from slipstream_core.manifest.rollout import Rollback, RolloutStep, Thresholds, effective


def check_policy(spec: SpeculationPolicySpec) -> Iterator[Problem]:
    """Yields every problem within one policy."""
    yield from _check_names(spec.classes)
    yield from _check_latencies(spec.thresholds, "spec.thresholds")
    for index, rule in enumerate(spec.classes):
        if rule.thresholds is not None:
            yield from _check_class_thresholds(rule, spec.thresholds, f"spec.classes[{index}].thresholds")
    yield from _check_hold_back(spec)
    yield from _check_parity(spec)
    yield from _check_steps(spec.rollout.steps)
    yield from _check_cool_down(spec.rollback)


def _check_names(classes: Sequence[ClassRule]) -> Iterator[Problem]:
    names = [rule.name for rule in classes]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(f"spec.classes[{index}].name", f"another rule already has the class {show(name)}")


def _check_class_thresholds(rule: ClassRule, policy: Thresholds, path: str) -> Iterator[Problem]:
    if rule.thresholds is None:
        return
    if rule.mode == "plain":
        yield Problem(path, "has no effect with mode plain, leave it out")
        return
    merged = effective(policy, rule.thresholds)
    if (rule.thresholds.p95_seconds, rule.thresholds.ttft_p95_seconds) != (None, None):
        yield from _check_latencies(merged, path)


def _check_latencies(thresholds: Thresholds, path: str) -> Iterator[Problem]:
    """A first token never comes later than the whole answer, so such a limit would have no effect."""
    first, whole = thresholds.ttft_p95_seconds, thresholds.p95_seconds
    if first is not None and whole is not None and first > whole:
        yield Problem(f"{path}.ttftP95Seconds", f"must be at most p95Seconds ({whole:g}), got {first:g}")


def _check_hold_back(spec: SpeculationPolicySpec) -> Iterator[Problem]:
    least, most = spec.hold_back_share, spec.max_hold_back_share
    if most is not None and most < least:
        yield Problem("spec.maxHoldBackShare", f"must be at least holdBackShare ({least:g}), got {most:g}")


def _check_parity(spec: SpeculationPolicySpec) -> Iterator[Problem]:
    """Without replays a parity loss cannot be measured."""
    if spec.parity_share > 0.0:
        return
    held: list[tuple[str, Thresholds | None]] = [("spec.thresholds", spec.thresholds)]
    held += [(f"spec.classes[{index}].thresholds", rule.thresholds) for index, rule in enumerate(spec.classes)]
    for path, thresholds in held:
        if thresholds is not None and thresholds.parity_loss is not None:
            yield Problem(f"{path}.parityLoss", "needs spec.parityShare above 0, got 0: no answer is replayed")


def _check_steps(steps: Sequence[RolloutStep]) -> Iterator[Problem]:
    for index in range(1, len(steps)):
        before, share = steps[index - 1].share, steps[index].share
        if share <= before:
            path = f"spec.rollout.steps[{index}].share"
            yield Problem(path, f"must be above the step before ({before:g}), got {share:g}")


def _check_cool_down(rollback: Rollback) -> Iterator[Problem]:
    first, longest = rollback.cool_down_seconds, rollback.max_cool_down_seconds
    if first > longest:
        yield Problem("spec.rollback.coolDownSeconds", f"must be at most maxCoolDownSeconds ({longest}), got {first}")
