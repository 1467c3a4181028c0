"""Regret of routing against the per-request oracle, by load and data set, and what each part of the decision adds.

Simulated: recorded answers (`record_answers`) on a server with the step times of a table
(`oracle/costs.py`). The oracle knows each answer and its accepted draft tokens. `--parts` takes parts of
the decision away in turn. Regret is the mean time of an answer over the oracle's, minus 1, with the interval over
seeds, which differ in requests and draws. "Cold" are the first 200 requests of a gateway that starts with nothing
learnt, "warm" those after.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import msgspec

from tests.benchmarks.harness import Interval, Option, Report, benchmark, ratio
from tests.benchmarks.oracle.best import Case, best_arms, best_lengths, uniform
from tests.benchmarks.oracle.costs import costs_of
from tests.benchmarks.oracle.gateway import Gateway, Parts
from tests.benchmarks.oracle.parts import TAKEN, changed
from tests.benchmarks.oracle.policies import ENGINES_CHOICE, Given
from tests.benchmarks.oracle.prompts import contact
from tests.benchmarks.oracle.recordings import DATA_SETS, Recorded, read, sample
from tests.benchmarks.oracle.simulation import Done
from tests.benchmarks.record_answers import Recorder, embedded

COLD = 200
VARYING = 0
_WAVES, _WAVE = (4, 64, 1, 16, 2, 256, 8), 40
"""Requests in flight in turn where the load varies, and the requests of each."""
ORACLE, ANY = "oracle of lengths", "oracle"
"""Among draft lengths that hold for the whole answer; among these and the engine's choice."""


def of_parts(case: Case, seed: int, parts: Sequence[str]) -> Iterator[tuple[str, list[Done]]]:
    """The answers of the router without each of the parts."""
    for name in parts:
        without = TAKEN[name]
        with changed(without):
            yield f"router without {name}", case.run(Gateway(without.parts, seed))[0]


def of_policies(case: Case, seed: int) -> Iterator[tuple[str, list[Done]]]:
    """The answers of each policy."""
    fixed = uniform(case)
    for length, (answers, _) in enumerate(fixed):
        yield f"fixed {length}" if length else "plain", answers
    lengths = best_lengths(case, fixed)
    yield ORACLE, lengths
    chosen = case.run(Given([ENGINES_CHOICE] * len(case.requests)))
    yield "engine's choice", chosen[0]
    yield ANY, min(lengths, best_arms(case, chosen), key=case.total)
    for name, part in (("router", Parts()), ("router without shares", Parts(shares=False))):
        yield name, case.run(Gateway(part, seed))[0]
        yield f"{name}, engine's choice", case.run(Gateway(part, seed, adaptive=True))[0]
    yield "prior", case.run(Gateway(Parts(learns=False), seed))[0]


def measure(args: argparse.Namespace, report: Report) -> None:
    costs, recorded, known = costs_of(args.costs), recordings(args), _known(args.times)
    rows = []
    for data_set in args.data_sets:
        for in_flight in args.in_flight:
            found: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for seed in range(args.seeds):
                place = (args.costs, data_set, in_flight, seed, "parts" if args.parts else "policies")
                if place not in known:
                    requests = sample(recorded, data_set, args.requests + (in_flight or _WAVE), seed)
                    case = Case(
                        costs, requests, _load(in_flight, len(requests)), partial(_total_s, count=args.requests)
                    )
                    policies = of_parts(case, seed, args.parts) if args.parts else of_policies(case, seed)
                    known[place] = {name: _cold_and_warm(done, args.requests) for name, done in policies}
                    _append(args.times, place, known[place])
                for name, seconds in known[place].items():
                    found[name].append(seconds)
            rows += _show(report, data_set, in_flight, found)
    if args.out:
        lines = ",\n".join(json.dumps(row) for row in rows)
        Path(args.out).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def recordings(args: argparse.Namespace) -> dict[str, list[Recorded]]:
    """Those of the file; without one, a few of the embedded pair."""
    if args.recordings:
        return read(Path(args.recordings))
    rows = Recorder(embedded()).record(contact(8))
    return {"contact": [msgspec.convert(row, Recorded) for row in rows]}


def _total_s(answers: Sequence[Done], count: int) -> float:
    return sum(one.e2e_s for one in answers[:count])


def _load(in_flight: int, count: int) -> list[int]:
    if in_flight != VARYING:
        return [in_flight] * count
    return [_WAVES[index // _WAVE % len(_WAVES)] for index in range(count)]


def _cold_and_warm(answers: Sequence[Done], count: int) -> tuple[float, float]:
    """Mean seconds of the first requests and of the others; the last ones only keep the load up."""
    return fmean(one.e2e_s for one in answers[:COLD]), fmean(one.e2e_s for one in answers[COLD:count])


def _show(
    report: Report, data_set: str, in_flight: int, found: dict[str, list[tuple[float, float]]]
) -> Iterator[dict[str, object]]:
    """Reports the policies of a case, and returns their rows for the figure."""
    for name, of_seeds in found.items():
        other = found.get(ANY if "engine" in name else ORACLE, next(iter(found.values())))
        cold, warm = (_regret([a[at] for a in of_seeds], [b[at] for b in other]) for at in (0, 1))
        report.row(f"{data_set}, {in_flight}: {name}", warm=warm, cold=cold, e2e_s=fmean(one[1] for one in of_seeds))
        best = fmean(one[1] for one in found[ORACLE]) if ORACLE in found else 1.0
        over = round(fmean(one[1] for one in of_seeds) / best, 4)
        yield {
            "data_set": data_set,
            "in_flight": in_flight,
            "policy": name,
            "warm": warm,
            "cold": cold,
            "over_lengths": over,
        }


def _regret(policy: Sequence[float], oracle: Sequence[float]) -> Interval:
    return Interval(*(round(value - 1, 4) for value in ratio(policy, oracle)))


Place = tuple[str, str, int, int, str]
"""Costs, data set, requests in flight, seed, and whether policies or parts are compared."""


def _known(file: str) -> dict[Place, dict[str, tuple[float, float]]]:
    if not file or not Path(file).is_file():
        return {}
    rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    return {tuple(place): seconds for place, seconds in rows}


def _append(file: str, place: Place, seconds: dict[str, tuple[float, float]]) -> None:
    if file:
        with Path(file).open("a", encoding="utf-8") as out:
            out.write(json.dumps([place, seconds]) + "\n")


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        recordings=Option(None, "", "of record_answers"),
        costs=Option("8b", "8b", "a published table (8b, 70b) or the file of a measured one"),
        data_sets=Option(list(DATA_SETS), ["contact"], "data sets"),
        in_flight=Option([1, 4, 16, 64, 256], [4], "requests in flight; 0: it varies"),
        requests=Option(600, 240, "requests that count"),
        seeds=Option(4, 2, "seeds"),
        parts=Option([], [], "parts that are taken away in turn, in place of policies", choices=tuple(TAKEN)),
        times=Option("", "", "a file of times: what it has is not simulated again, what is simulated is appended"),
        out=Option("", "", "the figure's data"),
    )
