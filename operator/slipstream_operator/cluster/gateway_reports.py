"""The gateways' reports, and their summary for one object: the number of gateways that apply its spec, its servers that
may not speculate or cannot be reached, and the time of its last request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from slipstream_core.manifest.reports import (
    EVERY_PAIR,
    EXPIRES_S,
    GatewayReport,
    Sighting,
    UnreachableServers,
    WithheldServer,
    object_key_of,
    read_report,
    sighted,
)
from slipstream_core.manifest.status import GatewaysStatus

from slipstream_operator.cluster.comparison import differing
from slipstream_operator.cluster.resources import ObjectKey
from slipstream_operator.types import Demand, KubeObject

DEAD_FOR_GOOD = timedelta(hours=1)
_REQUESTS_KEPT = timedelta(hours=1)


class GatewayReports:
    """The latest report of every gateway, by the key of its Lease. The operator's own clock decides which gateway is
    alive."""

    def __init__(self) -> None:
        self._sightings: dict[ObjectKey, Sighting] = {}
        self._alive: set[ObjectKey] = set()
        self._last_request: dict[str, datetime] = {}

    def put(self, key: ObjectKey, lease: KubeObject, now: datetime) -> set[str] | None:
        """Store a report. Returns the objects (`namespace/Kind/name`) whose summary changes; None: all objects."""
        before, report = self._sightings.get(key), read_report(lease)
        if report is None:
            return self.remove(key)
        self._sightings[key] = after = sighted(before, report, now)
        for pair in report.in_use:
            self._last_request[pair] = max(self._last_request.get(pair, after.sign), after.sign)
        was_alive = key in self._alive
        self._note_life(key, now)
        if before is None or was_alive != (key in self._alive) or before.report.namespaces != report.namespaces:
            return None
        if (before.report.unreachable is None) != (report.unreachable is None):
            return None
        return _changed(before.report, report)

    def remove(self, key: ObjectKey) -> set[str] | None:
        """Remove the gateway of that Lease. Returns the same as `put`."""
        known = self._sightings.pop(key, None)
        self._alive.discard(key)
        return set() if known is None else None

    def expire(self, now: datetime) -> bool:
        """Whether a gateway has died, or returned, since the last call."""
        before = set(self._alive)
        for key in self._sightings:
            self._note_life(key, now)
        kept = {pair: at for pair, at in self._last_request.items() if now - at < _REQUESTS_KEPT}
        self._last_request = kept
        return before != self._alive

    def dead_for_good(self, now: datetime) -> list[ObjectKey]:
        """The Leases of gateways that will not return, since they were not renewed for a long time. A new Lease has
        time for a renewal first, since its gateway's clock may be wrong."""
        watched = timedelta(seconds=EXPIRES_S)
        return [
            key
            for key, sighting in self._sightings.items()
            if sighting.silent_for(now) > DEAD_FOR_GOOD and now - sighting.first > watched
        ]

    def status_of(self, key: ObjectKey, generation: int, uid: str | None = None) -> GatewaysStatus:
        """The number of live gateways that watch the object's namespace, and of those that apply its `generation`. An
        object of the same name with another `uid` does not count; None: any object of that name."""
        known = [report.generation_of(str(key), uid) or 0 for report in self._reports(key)]
        return GatewaysStatus(
            synced=sum(seen >= generation for seen in known),
            total=len(known),
            oldest_generation=min(known, default=None),
        )

    def withheld_of(self, key: ObjectKey) -> tuple[WithheldServer, ...]:
        """The servers of a pair that may not speculate, from the gateways that `status_of` counts: a server once for
        each gateway that reports it."""
        return tuple(server for report in self._reports(key) for server in report.withheld.get(str(key), ()))

    def unreachable_of(self, key: ObjectKey) -> tuple[UnreachableServers | None, ...]:
        """The unreachable servers of a pair: one value for each gateway that `status_of` counts and that has probed
        them; None if all of them answer."""
        reports = (report.unreachable for report in self._reports(key))
        return tuple(unreachable.get(str(key)) for unreachable in reports if unreachable is not None)

    def last_request_of(self, key: ObjectKey) -> datetime | None:
        """The time at which a gateway last reported requests for that pair, by the operator's clock: at most a minute
        late."""
        known = (self._last_request.get(name) for name in (str(key), EVERY_PAIR))
        return max((at for at in known if at is not None), default=None)

    def demand_of(self, key: ObjectKey) -> Demand:
        """The present use of that pair, by the gateways that `status_of` counts. The requests of a gateway that has
        stopped reporting, but still exists, are unknown: the pair counts as in use."""
        in_use = waiting = False
        for lease, sighting in self._sightings.items():
            report = sighting.report
            if report.watches(key.namespace):
                is_alive = lease in self._alive
                in_use |= not is_alive or str(key) in report.in_use or EVERY_PAIR in report.in_use
                waiting |= is_alive and str(key) in report.waiting
        return Demand(in_use=in_use, waiting=waiting)

    def _reports(self, key: ObjectKey) -> Iterator[GatewayReport]:
        """The reports of the live gateways that watch the object's namespace."""
        reports = (self._sightings[lease].report for lease in sorted(self._alive))
        return (report for report in reports if report.watches(key.namespace))

    def _note_life(self, key: ObjectKey, now: datetime) -> None:
        if self._sightings[key].is_alive(now):
            self._alive.add(key)
        else:
            self._alive.discard(key)


def _changed(old: GatewayReport, new: GatewayReport) -> set[str]:
    """The objects whose entries differ."""
    applied = {object_key_of(name) for name in differing(old.applied, new.applied)}
    unreachable = differing(old.unreachable or {}, new.unreachable or {})
    used = {*old.in_use} ^ {*new.in_use} | {*old.waiting} ^ {*new.waiting}
    return applied | differing(old.withheld, new.withheld) | unreachable | used
