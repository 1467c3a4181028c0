"""The manifest file brought to the fleet: at the start, and whenever it changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from slipstream_gateway import manifest
from slipstream_gateway.director.configuration import ConfigurationStatus
from slipstream_gateway.director.fleet import Fleet
from slipstream_gateway.errors import ManifestError
from slipstream_gateway.manifest import ManifestFile, RoutingTable, SlipstreamEngine, triton_model_name, with_endpoints
from slipstream_gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)


class FileSource:
    """The manifest file as the source of the routing table; followed for as long as it is entered."""

    def __init__(self, settings: GatewaySettings, manifest: Path, fleet: Fleet) -> None:
        self._settings = settings
        self._manifest = manifest
        self._fleet = fleet
        self._generation = ""
        self._started_with: Mapping[str, object] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Loads the file. Raises `ManifestError` where it is bad and there is no last good one."""
        file = ManifestFile(
            self._manifest,
            on_change=self._changed,
            on_error=self._failed,
            local_endpoints=self._settings.local_endpoints or manifest.LOCAL_TRITON,
            last_good=self._settings.last_good,
        )
        self._started_with = _local_models(file.table)
        self._swap(file.table)
        self._task = asyncio.create_task(file.watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def status(self) -> ConfigurationStatus:
        return ConfigurationStatus(origin="file", generation=self._generation)

    def _changed(self, table: RoutingTable) -> None:
        self._swap(table)
        _log.info("the manifest changed: generation %s", table.generation)
        if self._settings.local_endpoints is not None:
            _warn_of_restart(self._started_with, _local_models(table))

    def _swap(self, table: RoutingTable) -> None:
        self._fleet.swap(redirected(table, self._settings.endpoints))
        self._generation = table.generation

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
    """What the local Triton has to serve, by its name for the model: all that it reads at its own start."""
    pairs = (route.pair for route in table.routes.values())
    return {
        triton_model_name(pair): (pair.spec.target, pair.spec.draft, pair.spec.max_draft_tokens, pair.spec.engine)
        for pair in pairs
        if isinstance(pair.spec.engine, SlipstreamEngine) and not pair.spec.engine.endpoints
    }


def _warn_of_restart(served: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    for name, what in wanted.items():
        if name not in served:
            _log.warning("the running Triton does not serve the model '%s': restart 'slipstream up' for it", name)
        elif served[name] != what:
            _log.warning("the running Triton serves the model '%s' as it was: restart 'slipstream up'", name)
