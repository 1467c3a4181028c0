"""Is a class slower than on a server that never speculates? By class and load, with either value of `protect`.

One engine of this process decodes the mixed workload of the embedded pair, with a fixed number of requests in flight or
with Poisson arrivals. Every request takes part in three traffics, which take turns: one that never speculates, and two
in which all classes but the labels speculate with an adaptive draft length, with `protect: throughput` and with
`protect: latency`. Times are the process' CPU seconds, so that other work on the cores stays out of them; the engine
measures the costs of its steps by the same clock. A figure is the mean time of a class over its time without
speculation, and its interval is over requests.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import slipstream_engine.step.engine
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.embedded.corpus import DEFAULT_MIX
from slipstream_engine.embedded.workload import workload
from slipstream_engine.step.engine import Engine

from tests.benchmarks.engines import embedded_engine
from tests.benchmarks.harness import Option, Report, benchmark, ratio, turns

NEVER, THROUGHPUT, LATENCY = "never", "throughput", "latency"
WAYS = (NEVER, THROUGHPUT, LATENCY)
DRAFT_TOKENS = 6
PLAIN_TASKS = ("label",)


class Times(NamedTuple):
    """Seconds from the arrival of a request to its first and to its last token."""

    first_s: float
    last_s: float


class Traffic(NamedTuple):
    """Requests with their classes; `at_s` is when they arrive, or empty where `in_flight` requests are always there."""

    requests: Sequence[GenerationRequest]
    tasks: Sequence[str]
    at_s: Sequence[float]
    in_flight: int


def traffic(engine: Engine, count: int, seed: int, load: str) -> Traffic:
    """`load`: a number in flight, or `RATE/s`."""
    drawn = list(workload(seed, count, DEFAULT_MIX))
    requests = [
        GenerationRequest(
            request_id=str(index),
            prompt_ids=engine.tokenizer.render_chat(one.messages),
            max_tokens=one.max_tokens,
            sampling=SamplingParams(temperature=0.0),
        )
        for index, one in enumerate(drawn)
    ]
    tasks = [one.task for one in drawn]
    if not load.endswith("/s"):
        return Traffic(requests, tasks, (), int(load))
    draws, at_s = random.Random(seed), [0.0]
    while len(at_s) < count:
        at_s.append(at_s[-1] + draws.expovariate(float(load.removesuffix("/s"))))
    return Traffic(requests, tasks, at_s, count)


def decided(way: str, task: str, request: GenerationRequest) -> GenerationRequest:
    """`request` as a gateway sends it."""
    speculates = way != NEVER and task not in PLAIN_TASKS
    return msgspec.structs.replace(
        request, draft_tokens=DRAFT_TOKENS * speculates, adaptive=speculates, protected=way == LATENCY, group=task
    )


def served(engine: Engine, of: Traffic, way: str) -> list[Times]:
    """Decodes all of the traffic."""
    now_s, added = 0.0, 0
    arrived: list[float] = []
    times: dict[str, tuple[float, float]] = {}
    ended = 0
    while ended < len(of.requests):
        while added < len(of.requests) and added - ended < of.in_flight and (not of.at_s or of.at_s[added] <= now_s):
            arrived.append(of.at_s[added] if of.at_s else now_s)
            engine.add(decided(way, of.tasks[added], of.requests[added]))
            added += 1
        if added == ended:
            now_s = of.at_s[added]
            continue
        began_s = time.process_time()
        chunks = engine.step()
        now_s += time.process_time() - began_s
        for chunk in chunks:
            first_s, _ = times.get(chunk.request_id, (now_s, now_s))
            times[chunk.request_id] = (first_s, now_s)
            ended += chunk.finish_reason is not None
    found = [times[request.request_id] for request in of.requests]
    return [Times(first - at, last - at) for (first, last), at in zip(found, arrived, strict=True)]


def measure(args: argparse.Namespace, report: Report) -> None:
    slipstream_engine.step.engine.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    for load in args.loads:
        found: dict[str, list[Times]] = {way: [] for way in WAYS}
        tasks: list[str] = []
        engines = {way: embedded_engine(max_slots=8) for way in WAYS}  # each learns from its own traffic
        for number, way in turns(WAYS, args.rounds):
            of = traffic(engines[way], args.requests, args.seed + number, load)
            times = served(engines[way], of, way)
            if number >= 0:
                found[way] += times
                tasks += of.tasks if way == NEVER else ()
        table(load, found, tasks, report)


def table(load: str, found: Mapping[str, Sequence[Times]], tasks: Sequence[str], report: Report) -> None:
    for task in ["all", *sorted(set(tasks))]:
        rows = [index for index, own in enumerate(tasks) if task in ("all", own)]
        columns = {
            f"{way}_{name}": ratio([found[way][row][at] for row in rows], [found[NEVER][row][at] for row in rows])
            for way in (THROUGHPUT, LATENCY)
            for at, name in ((1, "e2e"), (0, "ttft"))
        }
        report.row(f"{load} in flight, {task}" if load.isdecimal() else f"{load}, {task}", **columns, n=len(rows))


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        requests=Option(120, 8, "of each round"),
        rounds=Option(3, 1, "of each traffic"),
        seed=Option(20_268, 20_268, "of the requests"),
        loads=Option(["1", "4", "8", "16"], ["2", "8/s"], "numbers in flight, or arrivals: RATE/s"),
    )
