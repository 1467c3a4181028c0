"""The manifest file brought to the fleet: at the start, and whenever it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from slipstream_core import manifest
from slipstream_core.errors import ManifestError
from slipstream_core.manifest import (
    ManifestFile,
    RoutingTable,
    SlipstreamEngine,
    VllmEngine,
    triton_model_name,
    with_endpoints,
)
from slipstream_core.manifest.kill_file import KillFile
from slipstream_core.manifest.kill_switch import KillEvent, killed_in
from slipstream_core.settings import GatewaySettings
from slipstream_core.tasks import cancel

from slipstream_gateway.fleet.fleet import ConfigurationStatus, Fleet

LOOK_FOR_KILLS_S = 0.025
_log = logging.getLogger(__name__)


class FileSource:
    """The manifest file, with the kill switches beside it, as the source of the routing table; both are followed for
    as long as it is entered."""

    def __init__(self, settings: GatewaySettings, manifest: Path, fleet: Fleet, kills: KillFile) -> None:
        self._settings = settings
        self._manifest = manifest
        self._fleet = fleet
        self.kills = kills
        self._obeyed = kills.kills
        self._said = ""
        self._table: RoutingTable | None = None
        self._unknown: frozenset[str] = frozenset()
        self._generation = ""
        self._started_with: Mapping[str, object] = {}
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def __aenter__(self) -> Self:
        """Loads both files. Raises `ManifestError` where the manifest is bad and there is no last good one, or where
        the kill switches cannot be read: what they were must not be guessed."""
        self.kills.refresh()
        file = ManifestFile(
            self._manifest,
            on_change=self._changed,
            on_error=self._failed,
            local_endpoints=self._settings.local_endpoints or manifest.LOCAL,
            last_good=self._settings.last_good,
        )
        self._started_with = _local_models(file.table)
        self._swap(file.table)
        self._tasks = (asyncio.create_task(file.watch()), asyncio.create_task(self._follow_kills()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await cancel(*self._tasks)

    def status(self) -> ConfigurationStatus:
        return ConfigurationStatus(origin="file", generation=self._generation)

    def _changed(self, table: RoutingTable) -> None:
        self._swap(table)
        _log.info("the manifest changed: generation %s", table.generation)
        if self._settings.local_endpoints is not None or self._settings.endpoints:
            _warn_of_restart(self._started_with, _local_models(table))

    def apply(self, event: KillEvent) -> None:
        self.kills.apply(event)
        self._publish_kills()

    async def obey_kills(self) -> None:
        """Takes over the kill switches if they are others. A file that cannot be read is logged, what was read before
        stays."""
        try:
            await self.kills.arefresh()
        except ManifestError as error:
            if str(error) != self._said:
                _log.error("the kill switches stay as they are: %s", error)
            self._said = str(error)
        else:
            self._said = ""
        self._publish_kills()

    def _publish_kills(self) -> None:
        if self.kills.kills is not self._obeyed and self._table is not None:
            self._publish(self._table)

    async def _follow_kills(self) -> None:
        while True:
            await asyncio.sleep(LOOK_FOR_KILLS_S)
            await self.obey_kills()

    def _swap(self, table: RoutingTable) -> None:
        routed = redirected(table, self._settings.endpoints)
        self._publish(routed)
        self._table, self._generation = routed, table.generation

    def _publish(self, table: RoutingTable) -> None:
        self._obeyed = self.kills.kills
        kills = self._obeyed.pairs
        unknown = frozenset(kills) - {route.key for route in table.routes.values()}
        if unknown and unknown != self._unknown:
            _log.warning(
                "kill switches are on for pairs that the manifest does not have: %s", ", ".join(sorted(unknown))
            )
        self._unknown = unknown
        self._fleet.swap(killed_in(table, kills), killed=frozenset(kills))

    def _failed(self, error: ManifestError) -> None:
        _log.error("the manifest is not usable, the last good one stays: %s", error)


def redirected(table: RoutingTable, endpoints: Mapping[str, tuple[str, ...]]) -> RoutingTable:
    """`table` with the upstream addresses of some pairs, by pair name, replaced."""
    if not endpoints:
        return table
    routes = {}
    for name, route in table.routes.items():
        to = endpoints.get(route.pair.metadata.name)
        routes[name] = route if to is None else with_endpoints(route, to)
    return msgspec.structs.replace(table, routes=routes)


def _local_models(table: RoutingTable) -> dict[str, object]:
    """What the servers of this machine have to serve, by model: all that they read at their own start."""
    pairs = (route.pair for route in table.routes.values())
    return {
        triton_model_name(pair): (pair.spec.target, pair.spec.draft, pair.spec.max_draft_tokens, pair.spec.engine)
        for pair in pairs
        if isinstance(pair.spec.engine, SlipstreamEngine | VllmEngine) and not pair.spec.engine.endpoints
    }


def _warn_of_restart(served: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    for name, what in wanted.items():
        if name not in served:
            _log.warning("no running server has the model '%s': restart 'slipstream up' for it", name)
        elif served[name] != what:
            _log.warning("the running server has the model '%s' as it was: restart 'slipstream up'", name)
