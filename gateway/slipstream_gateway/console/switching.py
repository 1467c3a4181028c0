"""Turns a pair's kill switch from the console, and measures the time until every worker has applied it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from slipstream_core.errors import ManifestError
from slipstream_core.manifest.kill_switch import LAND_WITHIN_S, NotSwitchable, command_for, now, with_event, within
from slipstream_core.manifest.kills import Kill, KillEvent, KillFile, Kills
from slipstream_core.manifest.table import Route

from slipstream_gateway.console.worker import WorkerSnapshot

LAND_WITHIN_S = 5.0
_POLL_EVERY_S = 0.02


class NotSwitchable(SlipstreamError):
    """The console cannot turn this kill switch; the message has the alternative."""


class KillSwitch(Protocol):
    """The way in which kill switches are turned on this gateway."""

    @property
    def kills(self) -> Kills:
        """The switches turned from the console, with their history."""
        ...

    def is_on(self, route: Route) -> bool:
        """Whether the switch that `turn` operates is on for the pair of `route`."""
        ...

    def command(self, route: Route) -> str:
        """The command for a pair whose switch cannot be turned from the console; empty if it can."""
        ...

    async def turn(self, pair: str, *, on: bool, by: str, reason: str) -> KillEvent:
        """Turns it and waits until all workers have applied it. Raises `NotSwitchable`."""
        ...


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
        run = f"slipstream {'kill' if on else 'unkill'} modelpair/{name}{_within(namespace)}"
        raise NotSwitchable(f"This gateway is not permitted to change the cluster's objects. Run: {run}")


def command_for(route: Route) -> str:
    """The command that kills the pair of `route`, or if it is killed, the one that ends the kill."""
    pair, policy = route.pair, route.policy
    if policy is not None and policy.spec.kill_switch and not pair.spec.kill_switch:
        return f"slipstream kill speculationpolicy/{policy.metadata.name}{_within(policy.metadata.namespace)}"
    return f"slipstream kill modelpair/{pair.metadata.name}{_within(pair.metadata.namespace)}"


def _within(namespace: str | None) -> str:
    return f" -n {namespace}" if namespace else ""


def with_event(kills: Kills, event: KillEvent) -> Kills:
    """`kills` with `event` as the latest."""
    return msgspec.structs.replace(kills, events=(event, *kills.events)[:MAX_EVENTS])


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


def now() -> str:
    """In Kubernetes' format, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
