"""Hostile requests by the thousand, and ways around authentication. The requests, and what is right for them, are those
of `tests/e2e/hostile`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvloop

from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.world import Scale, World
from tests.e2e.hostile.bypass import attacks, opened
from tests.e2e.hostile.driver import run_hostile
from tests.e2e.hostile.tokens import write_keys
from tests.e2e.hostile.world import hostile_world

_SHOWN = 5


def hostile(world: World, scale: Scale) -> Iterator[Reading]:
    """On a gateway of its own, before an upstream that survives whatever JSON comes."""
    readings = run_hostile(scale.hostile)
    first, *rest = readings.line().splitlines()
    yield Reading(
        fault=f"hostile requests × {scale.hostile}",
        goal="0 × 5xx of ours, 0 hangs, 0 leaks",
        measured=first,
        passed=readings.passed,
        figures=msgspec.to_builtins(readings, str_keys=True),
        notes=tuple(line.strip() for line in rest),
    )


def authentication(world: World, scale: Scale) -> Iterator[Reading]:
    """On a gateway with keys. An attack has got through where it is answered, or where the upstream heard of it."""
    with tempfile.TemporaryDirectory(prefix="slipstream-bypass-") as folder:
        tried, found, heard = uvloop.run(_attack(Path(folder)))
    yield Reading(
        fault=f"authentication, {tried} attacks",
        goal="0 bypasses",
        measured=f"{len(found)} got through, {heard} reached the upstream",
        passed=not found and not heard and tried > 0,
        figures={"tried": tried, "opened": {name: list(statuses) for name, statuses in found.items()}},
        notes=tuple(f"{name}: {statuses}" for name, statuses in found.items())[:_SHOWN],
    )


async def _attack(folder: Path) -> tuple[int, dict[str, tuple[int, ...]], int]:
    known = write_keys(folder)
    async with hostile_world(folder, "--keys", str(known.file)) as target:
        tried = attacks(known)
        found = await opened(target.port, tried)
        return len(tried), found, target.seen.count
