"""How a person turns the kill switch of a pair, wherever the pairs are declared: in a file or in a cluster.

The console shows and turns a `KillSwitch`; each source of the configuration brings its own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

import msgspec

from slipstream_core.errors import SlipstreamError
from slipstream_core.manifest.kills import MAX_EVENTS, KillEvent, Kills
from slipstream_core.manifest.table import Route

LAND_WITHIN_S = 5.0


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
        """Turn the switch, and wait until all workers apply it. Raises `NotSwitchable`."""
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
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
