"""What keys and limits add to a request: `python -m tests.benchmarks.access_keys [--rounds 3] [--seconds 2]`.

First in process: a key checked, a request authorized, admitted and settled, by itself and through a real Redis. Then
the real gateway, without keys, with keys and limits, and with Redis, in turns: the difference of its CPU time per
request and of the latency over one connection. A busy machine shows in every p99; compare within one run only.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop
from slipstream_core.rate_limits import Charge, Grant, Use
from slipstream_core.redis.redis_limits import RedisLimits
from slipstream_core.types import Endpoint, GenerationRequest, Message
from slipstream_gateway.access import KeyedAccess, KeyFile, Limiter, LocalLimits, SharedLimits, load_keyring
from slipstream_tools.cli import main as slipstream

from tests.benchmarks.gateway_load import percentile, run
from tests.benchmarks.gateway_openai import MANIFEST, WHOLE, cpu_s, free_port, upstream, wait_port
from tests.support.redis_server import RedisServer

GOAL_US = 60.0
LIMITS = ("--requests-per-minute", "100000000", "--tokens-per-minute", "1000000000", "--concurrent", "1000")
REQUEST = GenerationRequest(
    endpoint=Endpoint.CHAT, model="canned", messages=(Message(role="user", content="x" * 400),), max_tokens=64
)
_COUNT = 20_000


def new_key(path: Path) -> str:
    """A key with every limit that costs something and none that is reached."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        slipstream(["keys", "price", "-f", str(path), "--input", "0.1", "--output", "0.4"])
        slipstream(["keys", "create", "-f", str(path), *LIMITS, "--usd-per-day", "1000000", "--model", "canned"])
    return out.getvalue().strip()


def steps() -> dict[str, Callable[[], None]]:
    """What a request passes, a step at a time, with limits by this process; for `tests.benchmarks.access`."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    key = new_key(folder / "keys.json")
    ring = load_keyring(folder / "keys.json", None)
    principal = ring.authenticate(key, time.time())
    limits, charge = LocalLimits(), ring.prices.expected(REQUEST, principal.limits)

    def admit() -> None:
        grant = limits.admit(principal.key_id, principal.limits, charge)
        if not isinstance(grant, Grant):
            raise RuntimeError("the benchmark's key has reached a limit")
        limits.settle(Use(principal.key_id, principal.limits, grant, charge, Charge(164, 35_000)))

    return {
        "key checked": lambda: _done(ring.authenticate(key, time.time())),
        "model in the scope": lambda: _done(principal.may_use(REQUEST.model)),
        "request priced": lambda: _done(ring.prices.expected(REQUEST, principal.limits)),
        "limits taken and settled": admit,
    }


def _done(_: object) -> None:
    """What came of a step is nobody's business here."""


async def request_through(access: KeyedAccess, key: str) -> None:
    """All that the gate does for one request."""
    principal = access.authenticate(f"Bearer {key}")
    access.authorize(principal, REQUEST)
    lease = await access.admit(principal, REQUEST)
    lease.settle(100, 64)


async def in_process(keys: Path, key: str, redis_url: str | None) -> None:
    """Times every request by the wall, all of them by the CPU; Redis with one request at a time, and with 32."""
    shared: SharedLimits | None = RedisLimits(redis_url, exchange_s=1.0) if redis_url is not None else None
    async with KeyedAccess(KeyFile(keys, None), Limiter(LocalLimits(), shared)) as access:
        while shared is not None and not shared.connected:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)

        async def one() -> None:
            await request_through(access, key)

        name = "by Redis" if shared is not None else "by this process"
        await _timed(f"in process, limits {name}", one, count=_COUNT if shared is None else _COUNT // 5, at_once=1)
        if shared is not None:
            await _timed("in process, limits by Redis, 32 at once", one, count=_COUNT // 5, at_once=32)


async def _timed(what: str, one: Callable[[], Awaitable[None]], *, count: int, at_once: int) -> None:
    times_us: list[float] = []
    cpus_us: list[float] = []

    async def several() -> None:
        for _ in range(count // at_once):
            started, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            await one()
            cpus_us.append((time.thread_time_ns() - cpu_ns) / 1e3)
            times_us.append((time.perf_counter_ns() - started) / 1e3)

    cpu = time.process_time()
    await asyncio.gather(*(several() for _ in range(at_once)))
    cpu_us = 1e6 * (time.process_time() - cpu) / len(times_us)
    own = f", p99 {percentile(cpus_us, 0.99):6.1f} µs" if at_once == 1 else ""  # else it has others' in it
    print(
        f"{what:44} p50 {percentile(times_us, 0.5):7.1f} µs  p99 {percentile(times_us, 0.99):7.1f} µs"
        f"  CPU {cpu_us:6.1f} µs{own}   (goal: p99 {GOAL_US:g} µs)",
        flush=True,
    )


class Turn(NamedTuple):
    """One run of one gateway."""

    p50_us: float
    p99_us: float
    cpu_us: float


@contextmanager
def gateway(port: int, core: int, folder: Path, *options: str) -> Iterator[tuple[int, psutil.Process]]:
    manifest, own = folder / "pair.yaml", free_port()
    manifest.write_text(MANIFEST.format(port=port))
    command = [sys.executable, "-m", "slipstream_tools.cli", "gateway", "-f", str(manifest), "--port", str(own)]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(process.pid, {core})
        wait_port(own)
        yield own, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(40)


async def turn(port: int, worker: psutil.Process, request: bytes, seconds: float) -> Turn:
    await run(port, request, connections=1, seconds=0.3)
    used_s = cpu_s(worker)
    result = await run(port, request, connections=1, seconds=seconds)
    if result.bad:
        raise RuntimeError(f"{result.bad} answers were not whole")
    times_us = [1e6 * answer.seconds for answer in result.answers]
    used_us = 1e6 * (cpu_s(worker) - used_s) / len(result.answers)
    return Turn(percentile(times_us, 0.5), percentile(times_us, 0.99), used_us)


def in_turns(ports: Sequence[tuple[str, int, psutil.Process, bytes]], rounds: int, seconds: float) -> None:
    """Every gateway once per round; the medians over the rounds, and what they add to the first one's."""
    turns: dict[str, list[Turn]] = {name: [] for name, *_ in ports}
    for _ in range(rounds):
        for name, port, worker, request in ports:
            turns[name].append(uvloop.run(turn(port, worker, request, seconds)))
    medians = {
        name: Turn(*(percentile(list(column), 0.5) for column in zip(*t, strict=True))) for name, t in turns.items()
    }
    base = medians[ports[0][0]]
    for name, median in medians.items():
        added = Turn(*(a - b for a, b in zip(median, base, strict=True)))
        print(
            f"gateway, {name:35} p50 {median.p50_us:7.0f} µs ({added.p50_us:+5.0f})  p99 {median.p99_us:7.0f} µs"
            f" ({added.p99_us:+5.0f})  CPU {median.cpu_us:5.0f} µs ({added.cpu_us:+4.0f})",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="What keys and limits add to a request.")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each gateway (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (%(default)s)")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        redis = RedisServer(folder, free_port())
        stack.callback(redis.stop)
        keys = folder / "keys.json"
        key = new_key(keys)
        for url in (None, redis.url):
            uvloop.run(in_process(keys, key, url))
        port = stack.enter_context(upstream(cores[-1]))
        with_key = WHOLE.replace(
            b"host: localhost\r\n", b"host: localhost\r\nauthorization: Bearer %s\r\n" % key.encode()
        )
        ports = []
        for what, more, request in (
            ("no keys", (), WHOLE),
            ("keys and limits", ("--keys", str(keys)), with_key),
            ("keys and limits by Redis", ("--keys", str(keys), "--redis", redis.url), with_key),
        ):
            own = folder / what.replace(" ", "-")
            own.mkdir()
            ports.append((what, *stack.enter_context(gateway(port, cores[0], own, *more)), request))
        in_turns(ports, options.rounds, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
