"""Arguments of a request that depend on the engine of its pair. They are checked before the request is routed."""

from __future__ import annotations

from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.manifest.table import Route
from slipstream_core.types import GenerationRequest

from slipstream_gateway.upstreams.vllm_wire import client_xargs


def check_arguments(request: GenerationRequest, route: Route) -> None:
    """Raises `InvalidRequest` where `vllm_xargs` is no object, or has a key that the gateway sets itself. Whichever
    server the request would run on, the answer is the same."""
    if isinstance(route.pair.spec.engine, VllmEngine):
        client_xargs(request)
