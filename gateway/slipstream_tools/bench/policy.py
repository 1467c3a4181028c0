"""The SpeculationPolicy that a run recommends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec
from slipstream_core.manifest import ClassRule, SpeculationPolicy
from slipstream_core.types import LengthBin, TaskType

from slipstream_tools.bench.cases import Case, Prices
from slipstream_tools.bench.cells import cells_of
from slipstream_tools.bench.summary import ALL, PLAIN, ClassVerdict, Thresholds
from slipstream_tools.bench.verdict import DO_NOT, SPECULATE, verdicts_of


def measured_policy(
    base: SpeculationPolicy,
    cases: Sequence[Case],
    modes: Sequence[str],
    *,
    thresholds: Thresholds,
    prices: Prices,
    seed: int,
) -> SpeculationPolicy:
    """`base` with a rule for each class that has a verdict, and with the thresholds of the verdicts. Rules of `base`
    for other classes stay.

    Rules name the gateway's own classes, `task/length` and `task`, not those of the bench file. `task` gets the rule of
    all its requests, `task/length` a rule of its own where that differs. A class that should speculate gets the best
    draft length; a class without enough data keeps its rule in `base`, else the break-even decides. Where several loads
    were measured, a class speculates only if it should at each of them.
    """

    def verdicts(name_of: Callable[[Case], str | None]) -> dict[str, list[ClassVerdict]]:
        named = [msgspec.structs.replace(case, request_class=name) for case in cases if (name := name_of(case))]
        found: dict[str, list[ClassVerdict]] = defaultdict(list)
        for verdict in verdicts_of(cells_of(named, modes, prices, seed=seed, lengths=(ALL,)), thresholds):
            found[verdict.request_class].append(verdict)
        return found

    before = {rule.name: rule for rule in base.spec.classes}
    groups = verdicts(_task) | verdicts(_task_and_length)
    measured = {name: rule for name, group in groups.items() if (rule := _rule(name, group, before.get(name)))}
    same = {name for name, rule in measured.items() if "/" in name and _is_same(rule, measured.get(name.split("/")[0]))}
    rules = {name: rule for name, rule in (before | measured).items() if name not in same}
    success = msgspec.structs.replace(
        base.spec.success,
        p95_reduction=thresholds.p95_reduction,
        quality_loss=thresholds.quality_loss,
        cost_increase=thresholds.cost_increase,
    )
    spec = msgspec.structs.replace(base.spec, success=success, classes=tuple(rules[name] for name in sorted(rules)))
    return msgspec.structs.replace(base, spec=spec)


def _rule(name: str, verdicts: Sequence[ClassVerdict], before: ClassRule | None) -> ClassRule | None:
    """The rule of a class with a clear verdict; one that speculates keeps the thresholds of its rule `before`."""
    outcomes = {one.verdict for one in verdicts}
    if DO_NOT in outcomes:
        return ClassRule(name=name, mode="plain")
    if outcomes != {SPECULATE}:
        return None
    draft_tokens = Counter(one.draft_length for one in verdicts).most_common(1)[0][0]
    thresholds = before.thresholds if before else None
    return ClassRule(name=name, mode="speculative", draft_tokens=draft_tokens, thresholds=thresholds)


def _is_same(rule: ClassRule, parent: ClassRule | None) -> bool:
    return parent is not None and (rule.mode, rule.draft_tokens) == (parent.mode, parent.draft_tokens)


def _task(case: Case) -> str | None:
    """The task that routing saw; None for an unknown one."""
    row = case.rows.get(PLAIN)
    name = (row.request_class or "").partition("/")[0] if row else ""
    return name if name != TaskType.UNKNOWN and name in TaskType.__members__.values() else None


def _task_and_length(case: Case) -> str | None:
    row, task = case.rows.get(PLAIN), _task(case)
    length = (row.request_class or "").partition("/")[2] if row else ""
    return f"{task}/{length}" if task and length in LengthBin.__members__.values() else None
