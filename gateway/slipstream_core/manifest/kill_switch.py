"""How a person turns the kill switch of a pair, wherever the pairs are declared, and the switches of a manifest file.

The console shows and turns a `KillSwitch`; each source of the configuration brings its own. The switches of a manifest
file (`Kills`) are turned by an admin, applied by every gateway and kept over restarts (`kill_file`). A pair may
speculate only where neither the manifest nor this file forbids it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from slipstream_core.errors import SlipstreamError
from slipstream_core.manifest.status import Time
from slipstream_core.manifest.table import Route, RoutingTable

LAND_WITHIN_S = 5.0
MAX_EVENTS = 50
NOT_STORED = "not stored: ends with a restart"

Who = Annotated[str, Meta(min_length=1, max_length=100)]
MAX_PERSON_CHARS = 500
Person = Annotated[str, Meta(min_length=1, max_length=MAX_PERSON_CHARS)]
"""Who turned a switch, with the id of the key."""
Why = Annotated[str, Meta(max_length=500)]


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A kill switch that is on: since when, by whom, and why."""

    at: Time
    by: Person
    reason: Why = ""


class KillEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a kill switch. `landed_s` is the time from the turn until it was in force: in a cluster, in all
    gateways that report; with a manifest file, in this gateway. None if not all have confirmed it; `workers` is the
    number of those that have. `note` is free text."""

    at: Time
    pair: str
    on: bool
    by: Person
    reason: Why = ""
    landed_s: float | None = None
    workers: int = 0
    note: str = ""


class Kills(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. `pairs` are the kills by the pair's key; `events` are the latest turns, newest first."""

    pairs: dict[str, Kill] = {}
    events: tuple[KillEvent, ...] = ()


class NotSwitchable(SlipstreamError):
    """This kill switch cannot be turned from here; the message says how it can."""


class KillSwitch(Protocol):
    """The kill switches of all pairs."""

    @property
    def kills(self) -> Kills:
        """The switches that were turned here, with their history."""
        ...

    def is_on(self, route: Route) -> bool:
        """Whether the switch that `turn` turns is on for the pair of `route`."""
        ...

    def command(self, route: Route) -> str:
        """The command to run instead, for a pair whose switch cannot be turned from here; empty where it can."""
        ...

    async def turn(self, pair: str, *, on: bool, by: str, reason: str) -> KillEvent:
        """Turn the switch, and wait until it is in force. Raises `NotSwitchable`."""
        ...


def command_for(route: Route) -> str:
    """The command that stops the pair of `route`; where it is stopped, `unkill` in place of `kill` allows it again."""
    pair, policy = route.pair, route.policy
    if policy is not None and policy.spec.kill_switch and not pair.spec.kill_switch:
        return f"slipstream kill speculationpolicy/{policy.metadata.name}{within(policy.metadata.namespace)}"
    return f"slipstream kill modelpair/{pair.metadata.name}{within(pair.metadata.namespace)}"


def within(namespace: str | None) -> str:
    """The command's option for `namespace`."""
    return f" -n {namespace}" if namespace else ""


def with_event(kills: Kills, event: KillEvent) -> Kills:
    """`kills` with `event` as the latest."""
    return msgspec.structs.replace(kills, events=(event, *kills.events)[:MAX_EVENTS])


def now() -> str:
    """The time as Kubernetes writes it, to the millisecond."""
    return _written(datetime.now(UTC))


def time_of_turn(kills: Kills, pair: str) -> str:
    """The present time, or a millisecond after the latest turn of `pair` if the clock has been set back since."""
    turns = [event.at for event in kills.events if event.pair == pair]
    if not turns:
        return now()
    return max(now(), _written(datetime.fromisoformat(max(turns)) + timedelta(milliseconds=1)))


def _written(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_superseded(event: KillEvent, kills: Kills) -> bool:
    """Whether `kills` has `event`, or a later turn of its pair."""
    return any(one.pair == event.pair and order_of(one) >= order_of(event) for one in kills.events)


def order_of(event: KillEvent) -> tuple[str, bool]:
    """The order of a pair's turns. Of two at the same time, the one that turns the switch on is the later one."""
    return event.at, event.on


def with_turns(kills: Kills, turns: Iterable[KillEvent]) -> Kills:
    """`kills` after `turns`, without those that `kills` supersedes."""
    for event in sorted(turns, key=lambda turn: turn.at):
        if not is_superseded(event, kills):
            kills = _turned(kills, event)
    return kills


def with_note(kills: Kills, event: KillEvent) -> Kills:
    """`kills` with `event` in place of its first version."""
    events = tuple(event if _is_same_turn(one, event) else one for one in kills.events)
    return msgspec.structs.replace(kills, events=events)


def _is_same_turn(one: KillEvent, other: KillEvent) -> bool:
    return (one.at, one.pair, one.on) == (other.at, other.pair, other.on)


def _turned(kills: Kills, event: KillEvent) -> Kills:
    pairs = {pair: kill for pair, kill in kills.pairs.items() if pair != event.pair}
    if event.on:
        pairs[event.pair] = Kill(at=event.at, by=event.by, reason=event.reason)
    return with_event(msgspec.structs.replace(kills, pairs=pairs), event)


def killed_in(table: RoutingTable, kills: Mapping[str, Kill]) -> RoutingTable:
    """`table` with the pairs in `kills` killed. The routes of other pairs stay the same objects."""
    if not kills:
        return table
    routes = dict(table.routes)
    for model, route in table.routes.items():
        kill = kills.get(route.key)
        if kill is not None and route.killed is None:
            why = f"an admin turned the kill switch on: {kill.by}, {kill.at}"
            routes[model] = msgspec.structs.replace(route, killed=f"{why}: {kill.reason}" if kill.reason else why)
    return msgspec.structs.replace(table, routes=routes)
