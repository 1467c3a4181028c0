"""Triton dies or freezes in the middle of streams; the other replica goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from tests.benchmarks.harness import percentile
from tests.e2e.chaos.answers import Answer
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.verdicts import Tally
from tests.e2e.chaos.world import Scale, World

STALL_GOAL_S = 5.0  # how long a resumable stream may be silent before its server counts as stalled
STALL_SLACK_S = 2.5  # for the resumption itself, on a busy machine
HALTED_S = 10.0  # longer than both, so that nothing is right only because the server came back
GAP_FACTOR = 1.5
RESTART_AFTER_S = 1.5  # a new server loads on another machine: here it would take the resumed streams' cores


def no_fault(world: World, scale: Scale) -> Iterator[Reading]:
    """The same load with nothing wrong: what the others are compared with."""
    with world.load() as load:
        load.wait_answers(scale.calm_answers)
    tally = world.tally(load)
    ttft_s = _ttft_s(tally.answers)
    yield _reading(
        "none (undisturbed load)",
        "0 failed, 0 wrong",
        tally,
        tally.unacceptable == 0,
        more=f"TTFT p50 {_ms(ttft_s, 0.5)} p99 {_ms(ttft_s, 0.99)}",
        ttft_s=ttft_s,
    )


def triton_kill(world: World, scale: Scale) -> Iterator[Reading]:
    """One replica after the other is killed while streams are in the middle, and comes back before the next one."""
    killed_s: list[float] = []
    calm: list[Answer] = []
    with world.load() as load:
        load.wait_answers(scale.calm_answers)
        calm = list(load.answers)
        for number in range(scale.kills):
            replica = world.replicas[number % len(world.replicas)]
            load.wait_streaming(3)
            killed_s.append(replica.kill())
            time.sleep(RESTART_AFTER_S)
            replica.start()
            replica.wait_ready()
            load.wait_answers(2 * len(world.replicas))  # traffic has found it again
    tally = world.tally(load)
    more = f"{len(killed_s)} kills, {_hit(tally.answers, killed_s)} streams hit, {_resumed(tally.answers)} resumed"
    goal = "0 failures of resumable requests, 0 wrong"
    yield _reading(f"Triton SIGKILLed × {scale.kills}", goal, tally, tally.unacceptable == 0, more=more)
    yield _gap_reading(calm, tally.answers)


def _gap_reading(calm: Sequence[Answer], answers: Sequence[Answer]) -> Reading:
    """How long resumed streams were silent, beside the first token's time under the same load with nothing wrong."""
    gaps_s = [answer.longest_gap_s for answer in answers if answer.resumed and answer.ask.streams]
    ttft_s = _ttft_s(calm)
    beside_s = _ttft_s([answer for answer in answers if not answer.resumed])
    ratio = percentile(gaps_s, 0.99) / percentile(ttft_s, 0.99)
    measured = (
        f"gap p50 {_ms(gaps_s, 0.5)} p99 {_ms(gaps_s, 0.99)}; TTFT p50 {_ms(ttft_s, 0.5)} p99 {_ms(ttft_s, 0.99)}; "
        f"{ratio:.2f} ×"
    )
    return Reading(
        fault="  resume gap",
        goal=f"p99 ≤ {GAP_FACTOR} × normal TTFT p99",
        measured=measured if gaps_s else "no stream was resumed",
        passed=bool(gaps_s) and ratio <= GAP_FACTOR,
        figures={"gaps_s": gaps_s, "ttft_s": ttft_s, "beside_s": beside_s},
        notes=(
            f"streams of the whole run that were not resumed: TTFT p50 {_ms(beside_s, 0.5)} p99 {_ms(beside_s, 0.99)}",
        ),
    )


def triton_stall(world: World, scale: Scale) -> Iterator[Reading]:
    """A replica freezes with its connections open, and later goes on as if nothing had been."""
    with world.load() as load:
        load.wait_streaming(3)
        for number in range(scale.stalls):
            replica = world.replicas[number % len(world.replicas)]
            load.wait_streaming(3)
            replica.halt()
            time.sleep(HALTED_S)
            replica.resume()
            load.wait_answers(4 * len(world.replicas))
    tally = world.tally(load)
    gaps_s = [answer.longest_gap_s for answer in tally.answers if answer.resumed and answer.ask.streams]
    longest_s = max(answer.ended_s - answer.began_s for answer in tally.answers)
    more = f"{_resumed(tally.answers)} resumed; the longest request took {longest_s:.1f} s"
    goal = "0 failures of resumable requests, 0 wrong"
    yield _reading(f"Triton SIGSTOPped × {scale.stalls}", goal, tally, tally.unacceptable == 0, more=more)
    yield Reading(
        fault="  stall detected",
        goal=f"silent ≤ {STALL_GOAL_S:g} s + {STALL_SLACK_S:g} s",
        measured=f"gap p50 {_ms(gaps_s, 0.5)} p99 {_ms(gaps_s, 0.99)}" if gaps_s else "no stream was resumed",
        passed=bool(gaps_s) and max(gaps_s) <= STALL_GOAL_S + STALL_SLACK_S,
        figures={"gaps_s": gaps_s},
    )


def _reading(fault: str, goal: str, tally: Tally, passed: bool, *, more: str, **figures: object) -> Reading:
    return Reading(
        fault=fault,
        goal=goal,
        measured=f"{tally.requests} requests: {tally.summary()}; {more}",
        passed=passed and tally.requests > 0,
        figures={"requests": tally.requests, **tally.counts, **figures},
        notes=tuple(tally.examples()),
    )


def _ttft_s(answers: Sequence[Answer]) -> list[float]:
    return [ttft_s for answer in answers if (ttft_s := answer.ttft_s) is not None]


def _hit(answers: Sequence[Answer], killed_s: Sequence[float]) -> int:
    """Streams that were in the middle of their text at the moment of a kill, on either replica."""
    return sum(
        any(answer.moments_s and answer.moments_s[0] < at_s < answer.ended_s for at_s in killed_s)
        for answer in answers
        if answer.ask.streams
    )


def _resumed(answers: Sequence[Answer]) -> int:
    return sum(bool(answer.resumed) for answer in answers)


def _ms(values_s: Sequence[float], share: float) -> str:
    return f"{1e3 * percentile(values_s, share):.0f} ms"
