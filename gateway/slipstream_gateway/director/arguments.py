"""What of a request only the engine of its pair can judge, before it is decided where the request goes."""

from __future__ import annotations

from slipstream_gateway.manifest.engines import VllmEngine
from slipstream_gateway.manifest.table import Route
from slipstream_gateway.types import GenerationRequest
from slipstream_gateway.upstreams.vllm_wire import client_xargs


def check_arguments(request: GenerationRequest, route: Route) -> None:
    """Raises `InvalidRequest` for arguments of vLLM's that the gateway sets itself, on whatever server the request
    would run, and for those that are no object."""
    if isinstance(route.pair.spec.engine, VllmEngine):
        client_xargs(request)
