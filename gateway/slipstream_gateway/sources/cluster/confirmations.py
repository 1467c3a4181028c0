"""Which gateways apply a change of one object: their reports (`manifest.reports`), listed and watched.

This computer's clock decides which gateway is alive: a Lease that changes while it is watched has a living gateway,
whatever time that gateway writes into it. A Lease that does not change may belong to a gateway that is gone, or to one
that lost the API server and continues to serve the old configuration: `silent` names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
from slipstream_core.kube.client import Json, KubeClient
from slipstream_core.kube.errors import FORBIDDEN, KubeError
from slipstream_core.kube.reflector import Change, Pace, Reflector
from slipstream_core.manifest.reports import (
    RENEW_S,
    REPORT_SELECTOR,
    Sighting,
    applied_key,
    object_key_of,
    read_report,
    sighted,
)
from slipstream_core.tasks import beside

from slipstream_gateway.sources.cluster.switch import Flipped, Target

_PACE = Pace(first_pause_s=0.2, longest_pause_s=0.2)
_LISTEN = timedelta(seconds=1.5 * RENEW_S)  # a living gateway has renewed its report by then


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that applied the patch, at most `after_s` after the acknowledgement."""

    gateway: str
    after_s: float


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that has not confirmed, and has not renewed its report for `silent_s`."""

    gateway: str
    namespace: str
    silent_s: float


class Reports:
    """The reports of the gateways of a namespace, kept up to date within `following`."""

    def __init__(self, client: KubeClient, target: Target, *, namespace: str | None) -> None:
        """`namespace`: that of the reports; None: all, or the target's where the user may not list all."""
        self._client = client
        self._target = target
        self._namespace = namespace
        self._fallback = namespace is None
        self._sightings: dict[str, Sighting] = {}  # by the Lease's namespace/name, since names repeat
        self._first_seen_s: dict[str, dict[tuple[str, int], float]] = {}  # by Lease, then applied key and generation
        self._server_ahead = timedelta()
        self._changed = asyncio.Event()
        self.listed = False
        self.narrowed = False
        self.error: KubeError | None = None
        # A new list follows each failure: reports that were not renewed during an outage must not count as silent.
        self._reflector = Reflector(
            client,
            (self._path,),
            self,
            selector=REPORT_SELECTOR,
            pace=_PACE,
            resumes=False,
            on_failure=self._failed,
        )

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        async with beside(self._reflector.run()):
            yield

    async def wait(self, timeout_s: float) -> None:
        """Wait for a change, at most `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    @property
    def where(self) -> str:
        """The place of the gateways' reports, for messages."""
        return f"namespace {self._namespace}" if self._namespace else "the whole cluster"

    @property
    def refused(self) -> bool:
        """Whether the user may not read the reports: waiting is useless."""
        return self.error is not None and self.error.status == FORBIDDEN

    def applied(self, flipped: Flipped) -> list[Applied]:
        """The gateways that applied `flipped`, the quickest first."""
        wanted = applied_key(self._target.key, flipped.uid)
        found = []
        for key, sighting in self._watching():
            if self._has_applied(sighting, flipped):
                seen = self._first_seen_s[key].items()
                at_s = min(at_s for (name, made), at_s in seen if name == wanted and made >= flipped.generation)
                found.append(Applied(gateway=sighting.report.name, after_s=max(0.0, at_s - flipped.at_s)))
        return sorted(found, key=lambda applied: applied.after_s)

    def missing(self, flipped: Flipped) -> list[str]:
        """The living gateways that apply an older generation."""
        now = self._now()
        return [one.report.name for _, one in self._unconfirmed(flipped) if one.is_alive(now)]

    def silent(self, flipped: Flipped) -> list[Silent]:
        """The gateways that have not confirmed and have stopped to renew their reports."""
        now = self._now()
        return [
            Silent(
                gateway=one.report.name,
                namespace=key.partition("/")[0],
                silent_s=one.silent_for(now).total_seconds(),
            )
            for key, one in self._unconfirmed(flipped)
            if not one.is_alive(now)
        ]

    def is_settled(self, flipped: Flipped) -> bool:
        """Whether there is no gateway left to wait for: all others had the time for a renewal."""
        now = self._now()
        waited_for = (one.is_alive(now) or now - one.first < _LISTEN for _, one in self._unconfirmed(flipped))
        return self.listed and self.error is None and not any(waited_for)

    def _unconfirmed(self, flipped: Flipped) -> Iterator[tuple[str, Sighting]]:
        return ((key, one) for key, one in self._watching() if not self._has_applied(one, flipped))

    def _watching(self) -> list[tuple[str, Sighting]]:
        namespace = self._target.namespace
        return [(key, one) for key, one in sorted(self._sightings.items()) if one.report.watches(namespace)]

    def _has_applied(self, sighting: Sighting, flipped: Flipped) -> bool:
        generation = sighting.report.generation_of(self._target.key, flipped.uid)
        return generation is not None and generation >= flipped.generation

    def _now(self) -> datetime:
        return datetime.now().astimezone() + self._server_ahead

    def replaced(self, items: Sequence[Json]) -> None:
        """All reports, as listed."""
        if not self.listed:
            # A report's own time, which is the cluster's, counts until it changes; this computer's may differ.
            self._server_ahead = self._client.server_ahead
        if self.error is not None:
            self._sightings.clear()  # no gateway could renew its report, so silence proves nothing
            self.error = None
        for gone in self._sightings.keys() - {_lease_key(item) for item in items}:
            del self._sightings[gone]
        self.listed = True
        for item in items:
            self._observe(item)
        self._changed.set()

    def changed(self, changes: Sequence[Change]) -> None:
        """Events of the watch."""
        for change in changes:
            self._observe(change.item, gone=change.deleted)

    def _failed(self, error: KubeError) -> None:
        if error.status == FORBIDDEN and self._fallback:
            self._namespace, self._fallback, self.narrowed = self._target.namespace, False, True
            self._reflector.paths = (self._path,)
            return
        self.error = error
        self._changed.set()

    @property
    def _path(self) -> str:
        scope = f"/namespaces/{self._namespace}" if self._namespace else ""
        return f"/apis/coordination.k8s.io/v1{scope}/leases"

    def _observe(self, lease: Mapping[str, Any], *, gone: bool = False) -> None:
        key, report = _lease_key(lease), read_report(lease)
        if gone or report is None:
            self._sightings.pop(key, None)
        else:
            self._sightings[key] = sighted(self._sightings.get(key), report, self._now())
            seen = self._first_seen_s.setdefault(key, {})
            for name, generation in report.applied.items():
                if object_key_of(name) == self._target.key:
                    seen.setdefault((name, generation), time.monotonic())
        self._changed.set()


def _lease_key(lease: Mapping[str, Any]) -> str:
    return f"{lease['metadata']['namespace']}/{lease['metadata']['name']}"
