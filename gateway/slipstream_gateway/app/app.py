"""The application: its services, its endpoints and their lifetime."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Coroutine

from slipstream_core.settings import GatewaySettings
from starlette.applications import Starlette

from slipstream_gateway.api.port_router import PortRouter
from slipstream_gateway.app import Services, build_services
from slipstream_gateway.app.access import running
from slipstream_gateway.app.endpoints import build_port_router
from slipstream_gateway.app.metrics import observe
from slipstream_gateway.app.upstreams import connect
from slipstream_gateway.request.learning import Outcomes, OutcomeStore

__all__ = ["build_app", "connect"]


def build_app(settings: GatewaySettings) -> PortRouter:
    """The ASGI application. Its lifespan runs the services and follows the manifest. An invalid manifest file fails the
    start with `ManifestError`."""
    services = build_services(settings)
    observe(services)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with _running(services):
            gc.collect()
            gc.freeze()  # objects built at start-up stay alive; collections need not traverse them
            try:
                yield
            finally:
                gc.unfreeze()

    return build_port_router(services, settings).with_lifespan(lifespan)


@contextlib.asynccontextmanager
async def _running(services: Services) -> AsyncIterator[None]:
    """Runs the services beside the requests, entered in this order and exited in the reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, services.telemetry.close)
        await stack.enter_async_context(services.audit.running())
        await stack.enter_async_context(services.source)
        await stack.enter_async_context(services.peers)
        await stack.enter_async_context(running(services.access))
        await stack.enter_async_context(_beside(services.tls.watch(services.fleet.reconnect)))
        await stack.enter_async_context(_sharing(services.store, services.outcomes))
        stack.push_async_callback(services.fleet.aclose)
        stack.push_async_callback(services.parity.aclose)
        await stack.enter_async_context(services.conformance.running())
        yield


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Runs `work` while the context is open."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def _sharing(store: OutcomeStore, outcomes: Outcomes) -> AsyncIterator[None]:
    """Exchanges outcomes with other gateways while the context is open. On exit the remaining ones are written."""
    task = asyncio.create_task(store.run(outcomes.apply))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.aclose()
