"""The application: its services, their metrics, its endpoints and their lifetime."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable

from slipstream_core.observation import Draws
from slipstream_core.settings import GatewaySettings
from slipstream_core.tasks import beside
from starlette.applications import Starlette

from slipstream_gateway.access import KeyedAccess
from slipstream_gateway.api.port_router import PortRouter
from slipstream_gateway.app import Services, build_services
from slipstream_gateway.app.endpoints import build_port_router
from slipstream_gateway.app.envoy import serving_envoy
from slipstream_gateway.app.implementations import connect, pairs, running
from slipstream_gateway.decide.route import fresh_draws
from slipstream_gateway.request.observations import Outcomes, OutcomeStore
from slipstream_gateway.telemetry.areas import (
    observe_access,
    observe_audit,
    observe_capture,
    observe_configuration,
    observe_conformance,
    observe_departures,
    observe_evidence,
    observe_failover,
    observe_parity,
    observe_store,
)
from slipstream_gateway.telemetry.overload import observe_overload

__all__ = ["build_app", "connect"]


def build_app(
    settings: GatewaySettings, *, owns_process: bool = False, draw: Callable[[], Draws] = fresh_draws
) -> PortRouter:
    """The ASGI application. Its lifespan runs the services and follows the manifest. An invalid manifest file fails the
    start with `ManifestError`. `owns_process`: the process runs nothing else and ends with the application, so that its
    garbage collector may be changed. `draw`: the random draws of a request."""
    services = build_services(settings, draw=draw)
    observe(services)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with _running(services), serving_envoy(services, settings):
            if owns_process:
                gc.collect()
                gc.freeze()  # objects built at start-up stay alive; collections need not traverse them
            yield

    return build_port_router(services, settings).with_lifespan(lifespan)


@contextlib.asynccontextmanager
async def _running(services: Services) -> AsyncIterator[None]:
    """Runs the services beside the requests, entered in this order and exited in the reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, services.telemetry.close)
        await stack.enter_async_context(services.audit.running())
        await stack.enter_async_context(services.source)
        await stack.enter_async_context(running(services.access))
        await stack.enter_async_context(beside(services.tls.watch(services.fleet.reconnect)))
        await stack.enter_async_context(_sharing(services.store, services.outcomes))
        if services.capture is not None:
            await stack.enter_async_context(services.capture.running())
        stack.push_async_callback(services.fleet.aclose)
        stack.push_async_callback(services.parity.aclose)
        await stack.enter_async_context(services.conformance.running())
        await stack.enter_async_context(services.loaded_models.running())
        yield


@contextlib.asynccontextmanager
async def _sharing(store: OutcomeStore, outcomes: Outcomes) -> AsyncIterator[None]:
    """Exchanges outcomes with other gateways while the context is open. On exit the remaining ones are written."""
    try:
        async with beside(store.run(outcomes.apply)):
            yield
    finally:
        await store.aclose()


def observe(services: Services) -> None:
    """Connects telemetry to the services."""
    telemetry, evidence = services.telemetry, services.evidence
    observe_configuration(telemetry.meter, services.source.status)
    observe_parity(telemetry.meter, services.parity.counts)
    observe_store(telemetry.meter, services.store.status)
    observe_evidence(
        telemetry.meter,
        lambda: [(pair, found) for pair in pairs(services.fleet) for found in evidence.report(pair)],
    )
    observe_failover(telemetry.meter, services.resumptions.counts)
    observe_audit(telemetry.meter, lambda: services.audit.dropped_total, lambda: services.audit.waiting)
    observe_departures(telemetry.meter, lambda: services.departures.count)
    observe_conformance(
        telemetry.meter,
        replicas=services.conformance.replicas,
        checks=services.conformance.counts,
    )
    observe_overload(
        telemetry.meter,
        admission=services.admission,
        retries=services.retries,
        fleet=services.fleet,
    )
    if services.capture is not None:
        observe_capture(telemetry.meter, services.capture.counts)
    if isinstance(services.access, KeyedAccess):
        observe_access(telemetry.meter, services.access.status)
