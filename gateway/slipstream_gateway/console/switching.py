"""Turns a pair's kill switch from the console, and measures the time until this gateway has applied it."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from slipstream_core.errors import ManifestError
from slipstream_core.manifest.kill_file import KillFile
from slipstream_core.manifest.kill_switch import (
    NOT_STORED,
    KillEvent,
    Kills,
    NotSwitchable,
    command_for,
    time_of_turn,
    with_turns,
    within,
)
from slipstream_core.manifest.table import Route

_log = logging.getLogger(__name__)

Apply = Callable[[KillEvent], None]
"""Puts a turn in force in this gateway's memory."""


def acted(apply: Apply, event: KillEvent, kills: Callable[[], Kills]) -> KillEvent:
    """Puts `event` in force. Returns it with the time that this took; without one if `kills` has a later turn."""
    started_s = time.monotonic()
    apply(event)
    if (event.pair in kills().pairs) is not event.on:
        return event
    return msgspec.structs.replace(event, landed_s=time.monotonic() - started_s, workers=1)


class FileKillSwitch:
    """Turns kill switches in memory first, and then in a file that all gateways of the manifest follow. `refresh` makes
    this gateway read the file at once."""

    def __init__(self, file: KillFile, *, apply: Apply, refresh: Callable[[], Awaitable[None]]) -> None:
        self._file = file
        self._apply = apply
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
        event = acted(self._apply, event, lambda: self.kills)
        problem = await self._stored(event)
        return event if problem is None else self._not_stored(event, problem)

    async def _stored(self, event: KillEvent) -> ManifestError | None:
        """Stores `event`, with earlier turns that could not be stored. Returns the error if that failed."""
        turns = (event, *self._file.unstored)  # has `event` without its time, too
        try:
            await self._file.achange(lambda kills: with_turns(kills, turns))
        except ManifestError as exc:
            return exc
        await self._refresh()
        return None

    def _not_stored(self, event: KillEvent, problem: ManifestError) -> KillEvent:
        """`event` with a note for the response and the history."""
        _log.error("the kill switch of %s is turned %s, but %s", event.pair, "on" if event.on else "off", problem)
        keeps = (event.pair in self._file.stored.pairs) is event.on
        what = "missing in the stored history" if keeps else f"this gateway alone; {NOT_STORED}"
        noted = msgspec.structs.replace(event, note=f"{what} ({problem})")
        self._apply(noted)
        return noted


class OwnKills(Protocol):
    """A source with kills of its own beside those of the cluster's objects."""

    @property
    def own_kills(self) -> Kills: ...

    def is_killed_by_cluster(self, pair: str) -> bool: ...


class OwnKillSwitch:
    """The break-glass of a gateway in a cluster: kills in its memory, for when the API server does not answer."""

    def __init__(self, source: OwnKills, *, apply: Apply) -> None:
        self._source = source
        self._apply = apply

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
        event = acted(self._apply, event, lambda: self.kills)
        self._apply(event)  # with the time
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
