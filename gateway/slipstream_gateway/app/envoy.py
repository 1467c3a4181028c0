"""The filter for Envoy, beside the HTTP endpoints of the same gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from slipstream_core.manifest import WireProtocol
from slipstream_core.settings import GatewaySettings

from slipstream_gateway.api.turns import Turns
from slipstream_gateway.app.endpoints import generation
from slipstream_gateway.app.wiring import Services


@contextlib.asynccontextmanager
async def serving_envoy(services: Services, settings: GatewaySettings) -> AsyncIterator[None]:
    """Serves Envoy's filter on `settings.ext_proc` while the context is open. gRPC is imported only if it is used."""
    if settings.ext_proc is None:
        yield
        return
    from slipstream_gateway.extproc.filter import ExternalProcessor, serving

    def is_carried(model: str) -> bool | None:
        served = services.fleet.current.by_name.get(model)
        return None if served is None else served.route.plain.protocol is not WireProtocol.TRITON

    limits = settings.limits
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="parse") as threads:
        endpoints = generation(services, settings, Turns(threads))
        processor = ExternalProcessor(
            endpoints, is_carried, max_body_bytes=limits.max_body_bytes, has_keys=settings.access.enabled
        )
        async with serving(
            processor,
            settings.ext_proc,
            shared=settings.workers > 1,
            drain_s=limits.drain_s,
            max_body_bytes=limits.max_body_bytes,
            max_bodies_bytes=limits.max_bodies_bytes,
        ):
            yield
