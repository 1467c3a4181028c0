"""The fault harness: real processes on one machine, every answer held against an undisturbed run.

    python -m tests.e2e.chaos [--only FAULT …] [--full] [--times N] [--out FILE]     make chaos ARGS='…'
    python -m tests.e2e.chaos --soak [--minutes 60]                                   make soak ARGS='…'

Prints one table; exit code 1 where a goal was missed. The short form takes up to ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from tests.e2e.chaos import (
    clients,
    cluster_faults,
    network,
    redis_faults,
    restarts,
    soak,
    triton_faults,
)
from tests.e2e.chaos.table import Reading, head, last_line, row, write_json
from tests.e2e.chaos.world import FULL, Fault, Scale, World, running_world

FAULTS: dict[str, Fault] = {
    "no-fault": triton_faults.no_fault,
    "triton-kill": triton_faults.triton_kill,
    "triton-stall": triton_faults.triton_stall,
    "redis": redis_faults.redis_faults,
    "cluster": cluster_faults.cluster_faults,
    "rolling-restart": restarts.rolling_restart,
    "slow-readers": clients.slow_readers,
    "vanishing": clients.vanishing,
    "network": network.network,
}
SOAK: dict[str, Fault] = {"soak": soak.soak}


def play(world: World, name: str, fault: Fault, scale: Scale) -> list[Reading]:
    """All readings of one fault, and whether every part came back after it."""
    readings = []
    for reading in itertools.chain(guarded(name, fault(world, scale)), guarded(name, healed(world))):
        readings.append(reading)
        print(row(reading), flush=True)
    return readings


def guarded(name: str, readings: Iterator[Reading]) -> Iterator[Reading]:
    """`readings` with the time that each took. A fault that cannot be played to its end is a miss of its own."""
    began_s = time.monotonic()
    try:
        for reading in readings:
            yield msgspec.structs.replace(reading, seconds=time.monotonic() - began_s)
            began_s = time.monotonic()
    except Exception as error:  # a fault's top: whatever went wrong is this one's reading, not the end of the others
        measured = f"{type(error).__name__}: {error}"
        yield Reading(fault=name, goal="is played to its end", measured=measured, passed=False)


def healed(world: World) -> Iterator[Reading]:
    """No reading: nothing is to be said where every part came back."""
    world.heal()
    yield from ()


def run(names: list[str], faults: dict[str, Fault], scale: Scale, folder: Path) -> list[Reading]:
    with running_world(folder) as world:
        world.learn()
        print(head(), flush=True)
        return [reading for name in names for reading in play(world, name, faults[name], scale)]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", action="extend", choices=[*FAULTS], metavar="FAULT", help=f"of {', '.join(FAULTS)}"
    )
    parser.add_argument("--full", action="store_true", help="the numbers of a release instead of the short form")
    parser.add_argument("--times", type=int, help="how often Triton is killed and stalled")
    parser.add_argument("--seconds", type=float, help="how long the API server is gone")
    parser.add_argument("--soak", action="store_true", help="the long steady load instead of faults")
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the soak (%(default)g)")
    parser.add_argument("--out", type=Path, help="a file for all readings as JSON")
    return parser.parse_args()


def scale_of(asked: argparse.Namespace) -> Scale:
    scale = msgspec.structs.replace(FULL if asked.full else Scale(), soak_minutes=asked.minutes)
    if asked.times is not None:
        scale = msgspec.structs.replace(scale, kills=asked.times, stalls=asked.times)
    if asked.seconds is not None:
        scale = msgspec.structs.replace(scale, api_server_gone_s=asked.seconds)
    return scale


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    asked = options()
    signal.signal(signal.SIGTERM, _leave)  # so that what was started is ended
    faults = SOAK if asked.soak else FAULTS
    names = [*faults] if asked.soak else asked.only or [*faults]
    with tempfile.TemporaryDirectory(prefix="slipstream-chaos-", ignore_cleanup_errors=True) as folder:
        readings = run(names, faults, scale_of(asked), Path(folder))
    print(last_line(readings))
    if asked.out is not None:
        write_json(readings, asked.out)
    return int(any(reading.passed is False for reading in readings))


if __name__ == "__main__":
    sys.exit(main())
