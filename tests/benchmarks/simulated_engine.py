"""The embedded engine beside its simulation: measures the table of costs, then compares times at several loads.

The table is fitted to the steps of some requests of the contact-centre workload; other requests are then answered by
the engine and by the simulation. Times are CPU seconds of the engine's process, on one thread.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.step.engine import Engine

from tests.benchmarks.harness import Option, Report, benchmark, interval, turns
from tests.benchmarks.oracle.costs import Costs
from tests.benchmarks.oracle.policies import ENGINES_CHOICE, Given
from tests.benchmarks.oracle.prompts import Prompt, contact
from tests.benchmarks.oracle.recordings import Recorded
from tests.benchmarks.oracle.simulation import Choice
from tests.benchmarks.oracle.simulation import Engine as Simulated
from tests.benchmarks.record_answers import SLOTS, Recorder, embedded

_CONTEXT = 2_048


class Step(NamedTuple):
    """What one step of the engine did, and its CPU milliseconds."""

    decodes: int
    rows: int
    requests: int
    context: int
    passes: int
    drafted: int
    prefills: int
    prompt_tokens: int
    draft_prompt_tokens: int
    cpu_ms: float


def engine_of(in_flight: int) -> Engine:
    return load_engine(embedded(max_slots=in_flight, context_tokens=_CONTEXT))


def answer(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Step]:
    """Answers all `requests`; as many are in flight as the engine has slots."""
    steps = []
    for request in requests:
        engine.add(request)
    while engine.busy:
        before = {s.arrival: (s.prefilled, s.cached, len(s.tokens), s.draft_length) for s in _sequences(engine)}
        sequences = _sequences(engine)
        began_s = time.process_time()
        engine.step()
        steps.append(_step(before, sequences, 1e3 * (time.process_time() - began_s)))
    return steps


def _sequences(engine: Engine) -> list:
    return [*engine._running, *engine._waiting]


def _step(before: dict, sequences: list, cpu_ms: float) -> Step:
    decoding = [one for one in before.values() if one[0]]
    read = [
        (s.cached - cached, length)
        for s in sequences
        for prefilled, cached, _, length in [before[s.arrival]]
        if not prefilled and s.cached > cached
    ]
    return Step(
        bool(decoding),
        sum(1 + one[3] for one in decoding),
        len(decoding),
        sum(one[2] for one in decoding),
        max((one[3] for one in decoding), default=0),
        sum(one[3] for one in decoding),
        len(read),
        sum(tokens for tokens, _ in read),
        sum(tokens for tokens, length in read if length),
        cpu_ms,
    )


def fitted(steps: Sequence[Step]) -> Costs:
    """The table that fits `steps` best; outliers count less."""
    features = np.array([step[:-1] for step in steps], dtype=float)
    times = np.array([step.cpu_ms for step in steps])
    weights = np.ones(len(times))
    for _ in range(5):
        found, *_ = np.linalg.lstsq(features * weights[:, None], times * weights, rcond=None)
        error = np.abs(features @ found - times) / np.maximum(times, 1e-3)
        weights = 1.0 / np.maximum(times, 1e-3) / np.maximum(error / 0.2, 1.0)
    fixed, row, request, context, a_pass, drafted, a_prefill, prompt, draft_prompt = map(float, found)
    return Costs(
        name="embedded pair on one CPU thread", fixed=fixed, weights=0.0, row=row, request=request, context=context,
        draft_share=0.0, draft_fixed=a_pass, draft_row=drafted, draft_prefill=draft_prompt, prefill_row=prompt,
        prefill_fixed=a_prefill, prefill_budget=128, separate_prefill=True,
    )  # fmt: skip


def asked(engine: Engine, prompts: Sequence[Prompt], way: Way) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=str(index),
            prompt_ids=engine.tokenizer.render_chat(prompt.messages),
            max_tokens=prompt.request["max_tokens"],
            sampling=SamplingParams(temperature=0.0),
            draft_tokens=choice.draft_length,
            adaptive=choice.adaptive,
        )
        for index, (prompt, choice) in enumerate(zip(prompts, way.choices, strict=True))
    ]


def measure(args: argparse.Namespace, report: Report) -> None:
    prompts = contact(2 * args.requests)
    calibration, checked = prompts[args.requests :], prompts[: args.requests]
    recorder = Recorder(embedded(context_tokens=_CONTEXT))
    recorded = [
        msgspec.convert(row, Recorded)
        for first in range(0, len(checked), SLOTS)
        for row in recorder.record(checked[first : first + SLOTS])
    ]
    ways = _ways(len(checked))
    engines = {in_flight: engine_of(in_flight) for in_flight in args.in_flight}
    steps: list[Step] = []
    spent_ms: dict[tuple[int, str], list[float]] = defaultdict(list)
    # The machine's speed changes: both kinds of runs alternate.
    for _, (in_flight, name) in turns([(one, name) for one in engines for name in ways], args.rounds, warm_up=0):
        engine, way = engines[in_flight], ways[name]
        if not way.adaptive:
            steps += answer(engine, asked(engine, calibration, way))
        spent_ms[in_flight, name].append(sum(step.cpu_ms for step in answer(engine, asked(engine, checked, way))))
    costs = fitted(steps)
    report.note(str(costs))
    if args.out:
        Path(args.out).write_bytes(msgspec.json.encode(costs))
    for (in_flight, name), real in spent_ms.items():
        done, _ = Simulated(costs, Given(ways[name].choices), [in_flight] * len(checked)).run(recorded)
        simulated_ms = max(one.ended_s for one in done) * 1e3 / len(checked)
        measured_ms = interval(lambda some: fmean(some) / len(checked), real)
        off = simulated_ms / measured_ms.estimate - 1
        report.row(f"{in_flight} in flight, {name}", measured_ms=measured_ms, simulated_ms=simulated_ms, off=off)


class Way(NamedTuple):
    """One way to answer the requests."""

    choices: list[Choice]

    @property
    def adaptive(self) -> bool:
        return any(choice.adaptive for choice in self.choices)


def _ways(count: int) -> dict[str, Way]:
    chance = random.Random(0)
    mixed = [Choice(chance.choice((0, 3, 6))) for _ in range(count)]
    return {
        "plain": Way([Choice(0)] * count),
        "draft length 3": Way([Choice(3)] * count),
        "draft length 8": Way([Choice(8)] * count),
        "0, 3 or 6": Way(mixed),
        "engine's choice": Way([ENGINES_CHOICE] * count),
    }


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        requests=Option(40, 4, "requests that are compared; as many for the table"),
        in_flight=Option([1, 4, 8], [1, 2], "requests in flight"),
        rounds=Option(3, 1, "runs of the engine"),
        out=Option("", "", "file for the table"),
    )
