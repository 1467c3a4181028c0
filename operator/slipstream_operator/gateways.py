"""How far a spec has come: the gateways' reports, and what they amount to for one object."""

from __future__ import annotations

from datetime import datetime, timedelta

from slipstream_gateway.manifest.reports import GatewayReport, read_report
from slipstream_gateway.manifest.status import GatewaysStatus

from slipstream_operator.cluster.resources import ObjectKey
from slipstream_operator.plan import KubeObject

DEAD_FOR_GOOD = timedelta(hours=1)


class Gateways:
    """The latest report of every gateway, by the key of its Lease."""

    def __init__(self) -> None:
        self._reports: dict[ObjectKey, GatewayReport] = {}
        self._alive: set[ObjectKey] = set()

    def put(self, key: ObjectKey, lease: KubeObject, now: datetime) -> set[str] | None:
        """Take in a report: the objects (`namespace/Kind/name`) that it says something new of; None: of all."""
        before, after = self._reports.get(key), read_report(lease)
        if after is None:
            return self.remove(key)
        self._reports[key] = after
        was_alive = key in self._alive
        self._note_life(key, now)
        if before is None or was_alive != (key in self._alive) or before.namespaces != after.namespaces:
            return None
        names = before.applied.keys() | after.applied.keys()
        return {name for name in names if before.applied.get(name) != after.applied.get(name)}

    def remove(self, key: ObjectKey) -> set[str] | None:
        """Forget the gateway of that Lease; returns as `put` does."""
        known = self._reports.pop(key, None)
        self._alive.discard(key)
        return set() if known is None else None

    def expire(self, now: datetime) -> bool:
        """Whether a gateway has died, or come back, since it was last looked at."""
        before = set(self._alive)
        for key in self._reports:
            self._note_life(key, now)
        return before != self._alive

    def dead_for_good(self, now: datetime) -> list[ObjectKey]:
        """The Leases that nobody has renewed for so long that their gateways will not come back."""
        return [key for key, report in self._reports.items() if now - report.renewed > DEAD_FOR_GOOD]

    def status_of(self, key: ObjectKey, generation: int) -> GatewaysStatus:
        """Who goes by `generation` of that object, of those alive that watch its namespace."""
        reports = (self._reports[lease] for lease in self._alive)
        known = [report.generation_of(str(key)) or 0 for report in reports if report.watches(key.namespace)]
        return GatewaysStatus(
            synced=sum(seen >= generation for seen in known),
            total=len(known),
            oldest_generation=min(known, default=None),
        )

    def _note_life(self, key: ObjectKey, now: datetime) -> None:
        if self._reports[key].is_alive(now):
            self._alive.add(key)
        else:
            self._alive.discard(key)
