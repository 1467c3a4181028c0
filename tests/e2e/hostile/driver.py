"""Thousands of hostile requests at one gateway, and what they left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import psutil

from tests.e2e.hostile.corpus import LIVE, Case, corpus
from tests.e2e.hostile.mutations import LIGHT_BYTES, mutated, seeds, split
from tests.e2e.hostile.wire import Answers, talk
from tests.e2e.hostile.world import Target
from tests.support.metrics import total

MUTATED_SHARE = 0.75
HEAVY_SHARE = 0.002
DRIP_SHARE = 0.02
DRIP_S = 0.01
QUIET_S = 0.25  # an answer that takes longer is not waited for: the client leaves
CASE_S = 60.0  # 128 cases come at once, the large ones first; below the 75 s after which any connection is closed
SETTLE_S = 10.0
LEAK_MB = 10.0
SPARE_DESCRIPTORS = 4
WARM_UP = 2_000
_SHOWN = 5


class Readings(msgspec.Struct, kw_only=True):
    """What a run showed. `failures` are answers of 500 and above, `hangs` are connections that got neither an answer
    nor an end, `wrong` are cases of the corpus with other answers than theirs, each shown with the bytes that did it.
    """

    sent: int = 0
    statuses: dict[int, int] = {}
    unanswered: int = 0
    failures: list[str] = []
    hangs: list[str] = []
    wrong: list[str] = []
    tracebacks: int = 0
    rss_mb: tuple[float, float] = (0.0, 0.0)
    descriptors: tuple[int, int] = (0, 0)
    in_flight: float = 0.0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        before, after = zip(self.rss_mb, self.descriptors, strict=True)
        leaks = _leaks(before, after)
        return not (self.failures or self.hangs or self.wrong or self.tracebacks or leaks or self.in_flight)

    def line(self) -> str:
        bad = [*self.failures[:_SHOWN], *self.hangs[:_SHOWN], *self.wrong[:_SHOWN]]
        return (
            f"{self.sent} requests in {self.seconds:.0f} s, {sum(self.statuses.values())} answers "
            f"{dict(sorted(self.statuses.items()))}: {len(self.failures)} × 5xx, {len(self.hangs)} hangs, "
            f"{len(self.wrong)} wrong answers, {self.tracebacks} tracebacks; "
            f"RSS {self.rss_mb[0]:.1f} to {self.rss_mb[1]:.1f} MB, descriptors {self.descriptors[0]} to "
            f"{self.descriptors[1]}, {self.in_flight:g} requests left in flight"
            + "".join(f"\n  {text}" for text in bad)
        )


class _Shot(NamedTuple):
    """One connection to play: with `case` its answers are known."""

    pieces: list[bytes]
    pause_s: float
    case: Case | None


def _shots(count: int, seed: int) -> Iterator[_Shot]:
    """The whole corpus once, then a mix of it and of what is made of it. Large ones stay rare."""
    rng, cases, pool = random.Random(seed), corpus(), seeds()
    light = [case for case in cases if len(case.data) < LIGHT_BYTES]
    heavy = [case for case in cases if len(case.data) >= LIGHT_BYTES]
    for case in cases[:count]:
        yield _Shot([case.data], 0.0, case)
    for _ in range(count - len(cases)):
        pause_s = DRIP_S if rng.random() < DRIP_SHARE else 0.0
        if rng.random() < MUTATED_SHARE:
            yield _Shot(split(rng, mutated(rng, pool)), pause_s, None)
        else:
            case = rng.choice(heavy if rng.random() < HEAVY_SHARE else light)
            yield _Shot([case.data] if case.whole else split(rng, case.data), pause_s, case)


async def bombard(count: int, target: Target, *, seed: int = 0, at_once: int = 128) -> Readings:
    """Plays `count` requests, at most `at_once` at a time. Raises nothing of what they do to the gateway."""
    loop, readings = asyncio.get_running_loop(), Readings()
    started_s, shots = loop.time(), _shots(count, seed)
    before: tuple[float, int] | None = None

    async def work() -> None:
        nonlocal before
        for shot in shots:
            await _play(shot, target, readings)
            if before is None and readings.sent >= min(WARM_UP, count // 2):
                before = _process(target.pid)

    await asyncio.gather(*(work() for _ in range(at_once)))
    readings.seconds = loop.time() - started_s
    started = before or _process(target.pid)
    after = await _settled(target, started)
    readings.rss_mb, readings.descriptors = (
        (started[0], after[0]),
        (min(started[1], SPARE_DESCRIPTORS + after[1]), after[1]),
    )
    readings.in_flight = await _left_in_flight(target.port)
    readings.tracebacks = target.log.count("Traceback")
    return readings


async def _play(shot: _Shot, target: Target, readings: Readings) -> None:
    case = shot.case
    awaited = 1 if case is None else len(case.statuses) + case.closes
    try:
        answers = await talk(
            target.port,
            shot.pieces,
            answers=max(1, awaited),
            quiet_s=QUIET_S if case is None else CASE_S,
            pause_s=shot.pause_s,
            heads_only=case is None and shot.pieces[:1] != [] and shot.pieces[0].startswith(b"HEAD"),
        )
    except ValueError as exc:
        readings.wrong.append(f"{exc}: {b''.join(shot.pieces)[:300]!r}")
        return
    finally:
        readings.sent += 1
    for status in answers.statuses:
        readings.statuses[status] = readings.statuses.get(status, 0) + 1
    readings.unanswered += not answers.statuses
    shown = f"{answers.statuses} for {b''.join(shot.pieces)[:300]!r}"
    if any(status >= 500 for status in answers.statuses):
        readings.failures.append(shown)
    if answers.hung:
        readings.hangs.append(shown)
    if case is not None and not is_right(case, answers):
        readings.wrong.append(f"{case.name}: {shown}, not {case.statuses}, closed: {answers.closed}")


def is_right(case: Case, answers: Answers) -> bool:
    return answers.statuses == case.statuses and answers.closed >= case.closes and case.body in answers.data


async def _settled(target: Target, before: tuple[float, int]) -> tuple[float, int]:
    """Memory and descriptors when what the run took is given back, or still is not after a while."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + SETTLE_S
    while True:
        found = _process(target.pid)
        if not _leaks(before, found) or loop.time() > deadline_s:
            return found
        await asyncio.sleep(0.25)


def _leaks(before: tuple[float, int], after: tuple[float, int]) -> bool:
    return after[0] - before[0] > LEAK_MB or after[1] > before[1] + SPARE_DESCRIPTORS


def _process(pid: int) -> tuple[float, int]:
    process = psutil.Process(pid)
    return process.memory_info().rss / 1e6, process.num_fds()


async def _left_in_flight(port: int) -> float:
    """Requests that still run after a while: those whose client has left take a moment to end."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + SETTLE_S
    while True:
        found = await _in_flight(port)
        if not found or loop.time() > deadline_s:
            return found
        await asyncio.sleep(0.25)


async def _in_flight(port: int) -> float:
    answers = await talk(port, [LIVE.replace(b"/health/live", b"/metrics")])
    return total(answers.data.decode(), "slipstream_requests_in_flight")
