"""A long steady load at a share of what the machine can do: memory, latency and errors over time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.benchmarks.harness import percentile
from tests.e2e.chaos.answers import Answer
from tests.e2e.chaos.load import Load
from tests.e2e.chaos.memory import rss_mb, slope
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.world import CLIENTS, Scale, World

SHARE_OF_CAPACITY = 0.7
CAPACITY_S = 30.0
WARM_UP_SHARE = 0.2
SLOPE_GOAL_MB_PER_H = 1.0
STEADY_FACTOR = 1.25
_SAMPLE_S = 2.0
_IN_FLIGHT = 64


class Sample(NamedTuple):
    """Resident memory of the gateway and of both Tritons together, at a moment by `time.perf_counter`."""

    at_s: float
    gateway_mb: float
    triton_mb: float


def soak(world: World, scale: Scale) -> Iterator[Reading]:
    """Requests come at a fixed rate, whether earlier ones have been answered or not."""
    rate = _capacity(world) * SHARE_OF_CAPACITY
    seconds = 60.0 * scale.soak_minutes
    samples: list[Sample] = []
    load = Load([world.gateway.url], world.recorded.asks, clients=_IN_FLIGHT, rate_per_s=rate)
    with load:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            time.sleep(_SAMPLE_S)
            triton_mb = sum(rss_mb(replica.pid) for replica in world.replicas)
            samples.append(Sample(time.perf_counter(), rss_mb(world.gateway.pid), triton_mb))
    at_s = [sample.at_s for sample in samples]
    name = f"soak {scale.soak_minutes:g} min at {rate:.1f} requests/s"
    yield _errors(world, load, name)
    yield _memory("  memory of the gateway", at_s, [sample.gateway_mb for sample in samples])
    yield _memory("  memory of Triton × 2", at_s, [sample.triton_mb for sample in samples])
    yield _latency(load.answers, samples)


def _capacity(world: World) -> float:
    """Answers a second of the mixed load, asked without a pause by as many clients as the engines take."""
    with world.load(clients=2 * CLIENTS) as load:
        load.wait_answers(CLIENTS)
        before, began_s = len(load.answers), time.monotonic()
        time.sleep(CAPACITY_S)
        return (len(load.answers) - before) / (time.monotonic() - began_s)


def _errors(world: World, load: Load, name: str) -> Reading:
    tally = world.tally(load)
    return Reading(
        fault=name,
        goal="0 errors, 0 wrong",
        measured=f"{tally.requests} requests: {tally.summary()}; {load.late} came late",
        passed=tally.unacceptable == 0,
        figures={**tally.counts, "late": load.late},
        notes=tuple(tally.examples()),
    )


def _memory(name: str, times_s: Sequence[float], values_mb: Sequence[float]) -> Reading:
    """`n/a` where the run was too short, or its memory too restless, to tell the slope from the goal."""
    begin = int(WARM_UP_SHARE * len(values_mb))
    found = slope(times_s[begin:], values_mb[begin:])
    passed = found.is_below(SLOPE_GOAL_MB_PER_H)
    verdict = "; the run is too short to tell" if passed is None else ""
    return Reading(
        fault=name,
        goal=f"RSS slope < {SLOPE_GOAL_MB_PER_H:g} MB/h after warm-up",
        measured=(
            f"{found.mb_per_h:+.2f} ± {found.error_mb_per_h:.2f} MB/h; {values_mb[0]:.1f} MB, warm "
            f"{values_mb[begin]:.1f}, last {values_mb[-1]:.1f}{verdict}"
        ),
        passed=passed,
        figures={"times_s": times_s, "values_mb": values_mb, "slope": found},
    )


def _latency(answers: Sequence[Answer], samples: Sequence[Sample]) -> Reading:
    """The p99 of the last third beside that of the first, after the warm-up."""
    begin_s = samples[int(WARM_UP_SHARE * len(samples))].at_s
    third_s = (samples[-1].at_s - begin_s) / 3
    first, last = (_taken_s(answers, begin_s + part * third_s, third_s) for part in (0, 2))
    p99_s = percentile(first, 0.99), percentile(last, 0.99)
    return Reading(
        fault="  latency",
        goal=f"p99 of the last third ≤ {STEADY_FACTOR} × the first",
        measured=f"p99 {1e3 * p99_s[0]:.0f} ms, then {1e3 * p99_s[1]:.0f} ms ({len(first)} and {len(last)} requests)",
        passed=p99_s[1] <= STEADY_FACTOR * p99_s[0],
        figures={"first_s": first, "last_s": last},
    )


def _taken_s(answers: Sequence[Answer], begin_s: float, seconds: float) -> list[float]:
    """Of the requests that were sent in that time."""
    return [each.ended_s - each.began_s for each in answers if begin_s <= each.began_s < begin_s + seconds]
