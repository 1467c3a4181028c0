"""Limits of keys when Redis goes away: exact over all gateways with it, each gateway's own without it, no error.

A gateway waits 25 ms for Redis, and decides alone where it does not answer: on a busy machine that happens with Redis
up. So what Redis granted is told from what was granted alone, by the gateways' own count.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from tests.e2e.chaos.processes import Gateway
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.world import Scale, World

PER_MINUTE = 60
ASKED = 3 * PER_MINUTE
GATEWAYS = 2
_BY_REDIS, _ALONE = 'by="redis"', 'by="local"'
_TIMEOUT_S = 30.0
_BODY = {
    "model": "paced",
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 1,
    "seed": 0,
    "stream": True,
}


def limits(world: World, scale: Scale) -> Iterator[Reading]:
    """Two gateways with the same keys are asked in turns, more than a key may: with Redis, then without."""
    path = world.folder / "keys.json"
    admin = _new_key(path, "admin", "--admin", "--no-models")
    first, *keys = [_limited_key(path, name) for name in ("first", "with Redis", "without Redis")]
    options, redis_url = ("--keys", str(path)), world.redis.url  # by the relay, Redis may answer later than they wait
    gateways = [world.new_gateway(f"limits-{number}", *options, redis_url=redis_url) for number in range(GATEWAYS)]
    try:
        for gateway in gateways:
            gateway.start()
        _ask(gateways, first, GATEWAYS)  # both know Redis by then
        yield _measure("limits, Redis up", gateways, keys[0], admin)
        world.redis.kill()
        yield _measure("limits, Redis killed", gateways, keys[1], admin, killed=True)
    finally:
        world.redis.heal()
        for gateway in gateways:
            gateway.stop()


def _measure(name: str, gateways: Sequence[Gateway], key: str, admin: str, *, killed: bool = False) -> Reading:
    before = _granted(gateways, admin)
    began_s = time.monotonic()
    statuses = _ask(gateways, key, ASKED)
    share = 1.0 + (time.monotonic() - began_s) / 60.0  # of the limit, with what came back meanwhile
    by_redis, alone = (after - earlier for after, earlier in zip(_granted(gateways, admin), before, strict=True))
    most, most_alone = int(PER_MINUTE * share) + 1, int(GATEWAYS * PER_MINUTE * share) + 1
    refused = statuses[429]
    return Reading(
        fault=name,
        goal=f"≤ {most_alone} granted, each by its gateway" if killed else f"≤ {most} granted by Redis",
        measured=(
            f"of {ASKED} in {60.0 * (share - 1.0):.1f} s: {by_redis} granted by Redis, {alone} by a gateway alone, "
            f"{refused} × 429, {ASKED - statuses[200] - refused} others"
        ),
        passed=(
            by_redis <= (0 if killed else most)
            and alone <= most_alone
            and by_redis + alone == statuses[200] >= PER_MINUTE
            and statuses[200] + refused == ASKED
        ),
        figures={"statuses": {str(status): count for status, count in statuses.items()}, "alone": alone},
    )


def _granted(gateways: Sequence[Gateway], admin: str) -> tuple[int, int]:
    """How many requests were let in by Redis, and by a gateway alone."""
    by_redis, alone = (
        sum(gateway.metric("slipstream_limits_decided_total", by, key=admin) for gateway in gateways)
        for by in (_BY_REDIS, _ALONE)
    )
    return int(by_redis), int(alone)


def _ask(gateways: Sequence[Gateway], key: str, count: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    turns = itertools.islice(itertools.cycle(gateways), count)
    with httpx.Client(timeout=_TIMEOUT_S, trust_env=False, headers={"authorization": f"Bearer {key}"}) as client:
        for gateway in turns:
            statuses[client.post(f"{gateway.url}/v1/chat/completions", json=_BODY).status_code] += 1
    return statuses


def _limited_key(path: Path, name: str) -> str:
    return _new_key(path, name, "--requests-per-minute", str(PER_MINUTE))


def _new_key(path: Path, name: str, *options: str) -> str:
    command = [sys.executable, "-m", "slipstream_tools.cli", "keys", "create", "-f", str(path), "--name", name]
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    return done.stdout.strip()
