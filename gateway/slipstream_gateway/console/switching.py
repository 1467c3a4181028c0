"""Turns a pair's kill switch from the console, and measures the time until every worker has applied it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from slipstream_core.errors import ManifestError
from slipstream_core.manifest.kill_file import KillFile
from slipstream_core.manifest.kill_switch import (
    LAND_WITHIN_S,
    NOT_STORED,
    KillEvent,
    Kills,
    NotSwitchable,
    command_for,
    time_of_turn,
    with_note,
    with_turns,
    within,
)
from slipstream_core.manifest.table import Route

from slipstream_gateway.console.worker import WorkerSnapshot

_POLL_EVERY_S = 0.02
_log = logging.getLogger(__name__)


class AllWorkers:
    """The workers of this gateway. `apply` puts a turn in force in this worker and sends it to the others; `snapshots`
    returns the snapshots of all `number` workers."""

    def __init__(
        self,
        *,
        apply: Callable[[KillEvent], Awaitable[None]],
        snapshots: Callable[[], Awaitable[Sequence[WorkerSnapshot]]],
        number: int,
    ) -> None:
        self.apply = apply
        self._snapshots = snapshots
        self._number = number

    async def act(self, event: KillEvent, *, killed: bool) -> KillEvent:
        """Puts `event` in force, after which the pair is `killed`. Returns it with the time until all workers had
        applied it, or with the number that had before the deadline."""
        started_s = time.monotonic()
        await self.apply(event)
        while True:
            answers = await self._snapshots()
            workers = sum((event.pair in answer.killed) is killed for answer in answers)
            elapsed_s = time.monotonic() - started_s
            if workers >= max(self._number, len(answers)):
                return msgspec.structs.replace(event, landed_s=elapsed_s, workers=workers)
            if elapsed_s > LAND_WITHIN_S:
                return msgspec.structs.replace(event, workers=workers)
            await asyncio.sleep(_POLL_EVERY_S)


class FileKillSwitch:
    """Turns kill switches in the memory of all `workers` first, and then in a file that they follow. `refresh` makes
    this worker read the file at once."""

    def __init__(self, file: KillFile, *, workers: AllWorkers, refresh: Callable[[], Awaitable[None]]) -> None:
        self._file = file
        self._workers = workers
        self._refresh = refresh

    @property
    def kills(self) -> Kills:
        return self._file.kills

    def is_on(self, route: Route) -> bool:
        return route.key in self.kills.pairs

    def command(self, route: Route) -> str:
        return ""

    async def turn(self, pair: str, *, on: bool, by: str, reason: str) -> KillEvent:
        """Never refused: a turn that cannot be stored has a note that says so."""
        event = KillEvent(at=time_of_turn(self.kills, pair), pair=pair, on=on, by=by, reason=reason)
        # The file is written while the workers confirm: neither waits for the other.
        event, problem = await asyncio.gather(self._workers.act(event, killed=on), self._stored(event))
        if problem is not None:
            return await self._not_stored(event, problem)
        try:
            await self._file.achange(lambda kills: with_note(kills, event))
        except ManifestError as exc:  # the switch is turned nevertheless, and the response must say so
            return msgspec.structs.replace(
                event, note=f"the time until it took effect is missing in the history: {exc}"
            )
        await self._refresh()
        return event

    async def _stored(self, event: KillEvent) -> ManifestError | None:
        """Stores `event`, with earlier turns that could not be stored. Returns the error if that failed."""
        turns = (*self._file.unstored, event)
        try:
            await self._file.achange(lambda kills: with_turns(kills, turns))
        except ManifestError as exc:
            return exc
        await self._refresh()
        return None

    async def _not_stored(self, event: KillEvent, problem: ManifestError) -> KillEvent:
        """`event` with a note for the response and the history."""
        _log.error("the kill switch of %s is turned %s, but %s", event.pair, "on" if event.on else "off", problem)
        keeps = (event.pair in self._file.stored.pairs) is event.on
        what = "missing in the stored history" if keeps else NOT_STORED
        noted = msgspec.structs.replace(event, note=f"{what} ({problem})")
        await self._workers.apply(noted)
        return noted


class OwnKills(Protocol):
    """A source with kills of its own beside those of the cluster's objects."""

    @property
    def own_kills(self) -> Kills: ...

    def is_killed_by_cluster(self, pair: str) -> bool: ...


class OwnKillSwitch:
    """The break-glass of a gateway in a cluster: kills in the memory of its workers, for when the API server does not
    answer."""

    def __init__(self, source: OwnKills, *, workers: AllWorkers) -> None:
        self._source = source
        self._workers = workers

    @property
    def kills(self) -> Kills:
        return self._source.own_kills

    def is_killed_by_cluster(self, pair: str) -> bool:
        return self._source.is_killed_by_cluster(pair)

    def is_on(self, route: Route) -> bool:
        return route.key in self.kills.pairs

    def command(self, route: Route) -> str:
        return ""

    async def turn(self, pair: str, *, on: bool, by: str, reason: str) -> KillEvent:
        event = KillEvent(
            at=time_of_turn(self.kills, pair), pair=pair, on=on, by=by, reason=reason, note=self._note(pair, on=on)
        )
        event = await self._workers.act(event, killed=on or self._source.is_killed_by_cluster(pair))
        await self._workers.apply(event)
        return event

    def _note(self, pair: str, *, on: bool) -> str:
        if self._source.is_killed_by_cluster(pair):
            return "this gateway alone; the cluster's objects kill the pair as well"
        return f"this gateway alone; {NOT_STORED}" if on else "this gateway alone"


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
