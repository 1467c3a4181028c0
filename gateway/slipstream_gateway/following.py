"""The manifest file brought to the fleet: at the start, and whenever it changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

import msgspec

from slipstream_gateway import manifest
from slipstream_gateway.director.fleet import Fleet
from slipstream_gateway.errors import ManifestError
from slipstream_gateway.manifest import ManifestFile, RoutingTable, SlipstreamEngine, triton_model_name, with_endpoints
from slipstream_gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def following(settings: GatewaySettings, fleet: Fleet) -> AsyncIterator[None]:
    """Loads the manifest into the fleet, and follows the file for as long as the context lasts.

    Raises `ManifestError` where the file is bad and there is no last good one.
    """

    def changed(table: RoutingTable) -> None:
        fleet.swap(redirected(table, settings.endpoints))
        _log.info("the manifest changed: generation %s", table.generation)
        if settings.local_endpoints is not None:
            _warn_of_restart(started_with, _local_models(table))

    def failed(error: ManifestError) -> None:
        _log.error("the manifest is not usable, the last good one stays: %s", error)

    file = ManifestFile(
        settings.manifest,
        on_change=changed,
        on_error=failed,
        local_endpoints=settings.local_endpoints or manifest.LOCAL_TRITON,
        last_good=settings.last_good,
    )
    started_with = _local_models(file.table)
    fleet.swap(redirected(file.table, settings.endpoints))
    task = asyncio.create_task(file.watch())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


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
