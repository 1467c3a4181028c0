"""The SpeculationPolicy that a run recommends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

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
    by_task = _verdicts([(case, _task(case)) for case in cases], modes, thresholds, prices, seed)
    by_length = _verdicts([(case, _task_and_length(case)) for case in cases], modes, thresholds, prices, seed)
    before = {rule.name: rule for rule in base.spec.classes}
    rules = {rule.name: rule for rule in _rules(by_task, before)}
    by_class = list(_rules(by_length, before))
    kept = [rule for rule in base.spec.classes if rule.name not in {*rules, *(one.name for one in by_class)}]
    finer = [rule for rule in by_class if _differs(rule, rules.get(rule.name.partition("/")[0]))]
    spec = msgspec.structs.replace(
        base.spec,
        success=msgspec.structs.replace(
            base.spec.success,
            p95_reduction=thresholds.p95_reduction,
            quality_loss=thresholds.quality_loss,
            cost_increase=thresholds.cost_increase,
        ),
        classes=tuple(sorted([*kept, *rules.values(), *finer], key=lambda rule: rule.name)),
    )
    return msgspec.structs.replace(base, spec=spec)


def _verdicts(
    named: Sequence[tuple[Case, str | None]],
    modes: Sequence[str],
    thresholds: Thresholds,
    prices: Prices,
    seed: int,
) -> dict[str, list[ClassVerdict]]:
    """Verdicts by the class in `named`; cases without one are left out."""
    cases = [msgspec.structs.replace(case, request_class=name) for case, name in named if name is not None]
    found: dict[str, list[ClassVerdict]] = defaultdict(list)
    for verdict in verdicts_of(cells_of(cases, modes, prices, seed=seed, lengths=(ALL,)), thresholds):
        found[verdict.request_class].append(verdict)
    return found


def _rules(verdicts: dict[str, list[ClassVerdict]], before: Mapping[str, ClassRule]) -> Iterator[ClassRule]:
    """One rule per class with a clear verdict; a class that speculates keeps the thresholds of its rule `before`."""
    for name, group in verdicts.items():
        outcomes = {one.verdict for one in group}
        if DO_NOT in outcomes:
            yield ClassRule(name=name, mode="plain")
        elif outcomes == {SPECULATE}:
            lengths = Counter(one.draft_length for one in group)
            thresholds = before[name].thresholds if name in before else None
            draft_tokens = lengths.most_common(1)[0][0]
            yield ClassRule(name=name, mode="speculative", draft_tokens=draft_tokens, thresholds=thresholds)


def _differs(rule: ClassRule, parent: ClassRule | None) -> bool:
    return parent is None or (rule.mode, rule.draft_tokens) != (parent.mode, parent.draft_tokens)


def _task(case: Case) -> str | None:
    """The task that routing saw; None for an unknown one."""
    row = case.rows.get(PLAIN)
    name = (row.request_class or "").partition("/")[0] if row else ""
    known = name != TaskType.UNKNOWN and name in TaskType.__members__.values()
    return name if known else None


def _task_and_length(case: Case) -> str | None:
    row, task = case.rows.get(PLAIN), _task(case)
    length = (row.request_class or "").partition("/")[2] if row else ""
    return f"{task}/{length}" if task and length in LengthBin.__members__.values() else None
