"""Redis dies, is slow, is full, comes back empty: requests notice nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from redis.exceptions import RedisError

from tests.benchmarks.harness import percentile
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.world import Scale, World

SLOW_S = 2.0
RESTARTS = 3
_BEFORE = 8  # answers


def redis_faults(world: World, scale: Scale) -> Iterator[Reading]:
    """Each fault for a while under load, and what came after it too."""
    faults: list[tuple[str, Callable[[float], None]]] = [
        ("Redis killed", lambda seconds: _killed(world, seconds)),
        (f"Redis slow ({SLOW_S:g} s)", lambda seconds: _slow(world, seconds)),
        ("Redis full", lambda seconds: _full(world, seconds)),
        (f"Redis restarted × {RESTARTS}", lambda seconds: _restarted(world, seconds)),
    ]
    for name, play in faults:
        yield _measure(world, name, play, scale.redis_fault_s)


def _measure(world: World, name: str, play: Callable[[float], None], seconds: float) -> Reading:
    with world.load() as load:
        load.wait_answers(_BEFORE)
        before = len(load.answers)
        play(seconds)
        load.wait_answers(_BEFORE)
    tally = world.tally(load)
    ttft_s = {
        part: [answer.ttft_s for answer in answers if answer.ttft_s is not None]
        for part, answers in (("before", load.answers[:before]), ("during", load.answers[before:]))
    }
    return Reading(
        fault=name,
        goal="0 failed requests, 0 wrong",
        measured=f"{tally.requests} requests: {tally.summary()}; TTFT p99 {_p99(ttft_s['during'])}",
        passed=tally.unacceptable == 0,
        figures={**tally.counts, **ttft_s},
        notes=tuple(tally.examples()),
    )


def _p99(values_s: list[float]) -> str:
    return f"{1e3 * percentile(values_s, 0.99):.0f} ms"


def _killed(world: World, seconds: float) -> None:
    world.redis.kill()
    time.sleep(seconds)
    world.redis.start()


def _slow(world: World, seconds: float) -> None:
    world.redis_relay.delay_s = SLOW_S
    try:
        time.sleep(seconds)
    finally:
        world.redis_relay.delay_s = 0.0


def _full(world: World, seconds: float) -> None:
    with world.redis.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        try:
            with suppress(RedisError):
                client.set("room", "none")
                raise AssertionError("Redis took a write though it is full")
            time.sleep(seconds)
        finally:
            client.config_set("maxmemory", 0)


def _restarted(world: World, seconds: float) -> None:
    for _ in range(RESTARTS):
        world.redis.kill()
        world.redis.start()
        time.sleep(seconds / RESTARTS)
