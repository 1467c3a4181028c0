"""What each part of the estimates is worth, and how sharply each constant is set: recorded requests of `slipstream
bench` are decided again without the part, or with half and twice the constant.

`python -m tests.benchmarks.learning_ablation RESULTS... [--constants] [--seeds N]`

Each RESULTS is a results.jsonl with the modes plain, `speculative` (the server chooses how many draft tokens it
verifies) and several `speculative:N` of one of the embedded manifests, found by the model's name. A row of the table
has Σ E2E of plain ÷ Σ E2E of the decisions, over all loads and orders of the requests, relative to the complete
estimates: above 1 the decisions are better without the part. `fixed` are replays in which the server chooses no draft
lengths.
"""

from __future__ import annotations

import argparse
import pkgutil
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import msgspec
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_gateway.decide import estimate
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.estimate import Learner, curves, fingerprint, pools, ratios
from slipstream_tools.bench.cases import Case, by_place, cases_of
from slipstream_tools.bench.manifests import policy_route
from slipstream_tools.bench.replay import Replayer
from slipstream_tools.bench.results import read_results
from slipstream_tools.bench.summary import PLAIN, SPECULATIVE

_COMPARISON = ("evidence", "moments", "student")  # what the operator and the console compare, no part of a forecast
_MODULES = [
    import_module(f"{estimate.__name__}.{found.name}")
    for found in pkgutil.iter_modules(estimate.__path__)
    if found.name not in _COMPARISON
]
_CLASSIFIER = LinearClassifier(default_model())
Patches = Sequence[AbstractContextManager[Any]]


class Recording:
    """The requests of one file with one kind of server, by load."""

    def __init__(self, path: Path, *, adaptive: bool) -> None:
        results = read_results(path)
        self.name = f"{path.parent.name}, {'adaptive' if adaptive else 'fixed'}"
        names = [name for name in results.header.settings.modes if name == SPECULATIVE or ":" in name]
        self._modes = (PLAIN, *(name for name in names if (name == SPECULATIVE) == adaptive))
        model = str(results.rows[0].request["model"])
        manifest = EMBEDDED_MANIFEST.parent / ("smollm2.yaml" if model == "smollm2" else "embedded.yaml")
        self._route = policy_route(manifest, manifest, None)
        whole = [self._kept(case) for case in cases_of(results.rows) if case.rows.keys() >= {*self._modes}]
        self._loads = list(by_place(whole).values())

    def _kept(self, case: Case) -> Case:
        return msgspec.structs.replace(case, rows={name: case.rows[name] for name in self._modes})

    def speed_up(self, seeds: int) -> float:
        """Σ plain ÷ Σ decided, mean over the loads."""
        return fmean(self._of_load(cases, seeds) for cases in self._loads)

    def _of_load(self, cases: list[Case], seeds: int) -> float:
        plain_s = decided_s = 0.0
        for seed in range(seeds):
            order = random.Random(seed).sample(cases, len(cases))
            replayer = Replayer(self._route, classifier=_CLASSIFIER, learner=Learner(), seed=seed)
            totals = replayer.run(order, self._modes).totals
            plain_s += totals[0].mean_e2e_s
            decided_s += totals[2].mean_e2e_s
        return plain_s / decided_s


def parts() -> Mapping[str, Patches]:
    """What is taken away, by name."""
    subject = fingerprint.Fingerprinter.subject

    def unlike_any(self: Any, *args: Any, **named: Any) -> Any:
        return msgspec.structs.replace(subject(self, *args, **named), fingerprint=str(random.random()))

    return {
        "templates": [patch.object(fingerprint.Fingerprinter, "subject", unlike_any)],
        "step times by template": [patch.object(ratios.ArmRatios, "update", lambda self, *args: None)],
        "the arms' times to first token": [patch.object(pools, "_RATIO_CLIP", 0.0)],
        "curves that lean on others": [patch.object(curves.Curve, "lean_on", lambda self, *args, **named: None)],
        "confirmation by other keys": [patch.object(curves.Curve, "confirmed", lambda self, load, key, y, line: y)],
        "drift": _everywhere("has_changed", lambda memory: False),
    }


def constants() -> Iterator[tuple[str, Patches, Patches]]:
    """Each number of the estimates with the patches that halve and double it. Counts and sizes are left out."""
    for module in _MODULES:
        source = Path(str(module.__file__)).read_text()
        for name, value in sorted(vars(module).items()):
            if not re.search(rf"^(.*, )?{name}(, .*)? = ", source, re.MULTILINE):
                continue
            for field, half, twice in _scaled(value):
                where = f"{module.__name__.rpartition('.')[2]}.{name}{field}"
                yield where, _everywhere(name, half, value), _everywhere(name, twice, value)


def _scaled(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """A number's half and double, or those of each field of a named tuple."""
    if isinstance(value, float):
        yield "", 0.5 * value, 2.0 * value
    for field in getattr(value, "_fields", ()):
        number = getattr(value, field)
        if isinstance(number, float) and number:
            yield f".{field}", value._replace(**{field: 0.5 * number}), value._replace(**{field: 2.0 * number})


def _everywhere(name: str, value: Any, before: Any = None) -> Patches:
    """`name` with another value in each module that has it (as `before`)."""
    return [
        patch.object(module, name, value)
        for module in _MODULES
        if hasattr(module, name) and (before is None or getattr(module, name) is before)
    ]


def measured(recordings: Sequence[Recording], patches: Patches, seeds: int) -> list[float]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        return [recording.speed_up(seeds) for recording in recordings]


def main() -> None:
    parser = argparse.ArgumentParser(description="What the parts and constants of the estimates are worth.")
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS")
    parser.add_argument("--constants", action="store_true", help="half and twice each constant, not the parts")
    parser.add_argument("--seeds", type=int, default=10, help="orders of the requests (10)")
    args = parser.parse_args()
    recordings = [Recording(path, adaptive=adaptive) for path in args.results for adaptive in (True, False)]
    whole = measured(recordings, (), args.seeds)
    print("| without |", " | ".join(recording.name for recording in recordings), "|")
    print("|---|" + "---|" * len(recordings))
    print("| nothing: plain ÷ decided |", " | ".join(f"{value:.3f}" for value in whole), "|")
    if not args.constants:
        for name, patches in parts().items():
            _print(name, [[a / b for a, b in zip(measured(recordings, patches, args.seeds), whole, strict=True)]])
        return
    for name, half, twice in constants():
        found = [measured(recordings, patches, args.seeds) for patches in (half, twice)]
        _print(name, [[a / b for a, b in zip(row, whole, strict=True)] for row in found])


def _print(name: str, rows: list[list[float]]) -> None:
    cells = [" / ".join(f"{value:.3f}" for value in column) for column in zip(*rows, strict=True)]
    print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
