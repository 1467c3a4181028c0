"""A proxy that carries requests to servers, in place of the gateway's own connections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from slipstream_core.types import Decision

from slipstream_gateway.upstreams.transport import HttpResponse

CARRIER = "slipstream.carrier"
"""The key of the ASGI extension that holds the `Carrier` of a request."""


class Carrier(Protocol):
    """The proxy's connection for one request: it reaches one server, once."""

    def announce(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Adds headers to the response for the client, before `post`."""
        ...

    def decided(self, decision: Decision) -> None:
        """Sets the decision, which the response's headers explain."""
        ...

    async def post(self, endpoint: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        """Sends the request with `headers`, which replace those of the same name, and `body`. `endpoint` is the address
        (`host:port`) of the server that the gateway would choose. Raises `UpstreamUnavailable` if the request was sent
        before."""
        ...
