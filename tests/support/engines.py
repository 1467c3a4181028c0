"""Upstreams of engines that tests call without a gateway."""

from __future__ import annotations

from slipstream_gateway.upstreams.engine_server import EngineUpstream
from slipstream_gateway.upstreams.tls import Credentials
from slipstream_gateway.upstreams.triton_transport import TritonTransport


def engine_in_triton(
    address: str, *, model: str = "embedded", connect_timeout_s: float = 5.0, tls: Credentials | None = None
) -> EngineUpstream:
    """The engine of the Triton model `model` at `address` (`host:port`)."""
    return EngineUpstream(TritonTransport(address, model=model, connect_timeout_s=connect_timeout_s, tls=tls))
