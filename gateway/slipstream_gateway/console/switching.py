"""Turns a pair's kill switch from the console, and measures the time until every worker has applied it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from slipstream_core.errors import ManifestError
from slipstream_core.manifest.kill_switch import (
    LAND_WITHIN_S,
    Kill,
    KillEvent,
    KillFile,
    Kills,
    NotSwitchable,
    command_for,
    now,
    with_event,
    within,
)
from slipstream_core.manifest.table import Route

from slipstream_gateway.console.worker import WorkerSnapshot

_POLL_EVERY_S = 0.02


class FileKillSwitch:
    """Turns kill switches in a file that every worker follows. `refresh` makes this worker read it at once; `snapshots`
    returns the snapshots of all `workers` workers."""

    def __init__(
        self,
        file: KillFile,
        *,
        refresh: Callable[[], Awaitable[None]],
        snapshots: Callable[[], Awaitable[Sequence[WorkerSnapshot]]],
        workers: int,
    ) -> None:
        self._file = file
        self._refresh = refresh
        self._snapshots = snapshots
        self._workers = workers

    @property
    def kills(self) -> Kills:
        return self._file.kills

    def is_on(self, route: Route) -> bool:
        return route.pair.metadata.key in self.kills.pairs

    def command(self, route: Route) -> str:
        return ""

    async def turn(self, pair: str, *, on: bool, by: str, reason: str) -> KillEvent:
        event = KillEvent(at=now(), pair=pair, on=on, by=by, reason=reason)
        try:
            await self._file.achange(lambda kills: _turned(kills, event))
        except ManifestError as exc:
            raise NotSwitchable(str(exc)) from exc
        written_s = time.monotonic()
        await self._refresh()
        event = await self._landed(event, written_s)
        try:
            await self._file.achange(lambda kills: _noted(kills, event))
        except ManifestError as exc:  # the switch is turned nevertheless, and the response must say so
            return msgspec.structs.replace(
                event, note=f"the time until it took effect is missing in the history: {exc}"
            )
        await self._refresh()
        return event

    async def _landed(self, event: KillEvent, written_s: float) -> KillEvent:
        """`event` with the time until all workers had applied it, or with the number that had before the deadline."""
        while True:
            answers = await self._snapshots()
            workers = sum((event.pair in answer.killed) is event.on for answer in answers)
            elapsed_s = time.monotonic() - written_s
            if workers >= max(self._workers, len(answers)):
                return msgspec.structs.replace(event, landed_s=elapsed_s, workers=workers)
            if elapsed_s > LAND_WITHIN_S:
                return msgspec.structs.replace(event, workers=workers)
            await asyncio.sleep(_POLL_EVERY_S)


class CommandKillSwitch:
    """If the cluster's objects are the only switches: the console shows the command that turns them."""

    kills = Kills()

    def is_on(self, route: Route) -> bool:
        return False

    def command(self, route: Route) -> str:
        return command_for(route)

    async def turn(self, pair: str, *, on: bool, by: str, reason: str) -> KillEvent:
        namespace, _, name = pair.rpartition("/")
        run = f"slipstream {'kill' if on else 'unkill'} modelpair/{name}{within(namespace)}"
        raise NotSwitchable(f"This gateway is not permitted to change the cluster's objects. Run: {run}")


def _turned(kills: Kills, event: KillEvent) -> Kills:
    pairs = {pair: kill for pair, kill in kills.pairs.items() if pair != event.pair}
    if event.on:
        pairs[event.pair] = Kill(at=event.at, by=event.by, reason=event.reason)
    return with_event(msgspec.structs.replace(kills, pairs=pairs), event)


def _noted(kills: Kills, event: KillEvent) -> Kills:
    """With the updated `event` in place of its first version."""
    events = tuple(
        event if (one.at, one.pair, one.on) == (event.at, event.pair, event.on) else one for one in kills.events
    )
    return msgspec.structs.replace(kills, events=events)
