"""A proxy that carries requests to servers, in place of the gateway's own connections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from slipstream_core.types import Decision

CARRIER = "slipstream.carrier"
"""The key of the ASGI extension that holds the `Carrier` of a request."""


class CarriedContent(Protocol):
    """The body of a response; the methods of aiohttp's `StreamReader`."""

    async def readany(self) -> bytes:
        """The next part, at once if there is one; empty at the end."""
        ...

    def at_eof(self) -> bool: ...


class CarriedResponse(Protocol):
    """A response whose head has arrived; the part of aiohttp's `ClientResponse` that is used."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def content(self) -> CarriedContent: ...

    def close(self) -> None: ...

    def release(self) -> object: ...


class Carrier(Protocol):
    """The proxy's connection for one request: it reaches one server, once."""

    def announce(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Adds headers to the response for the client, before `post`."""
        ...

    def decided(self, decision: Decision) -> None:
        """Sets the decision, which the response's headers explain."""
        ...

    async def post(self, endpoint: str, headers: Mapping[str, str], body: bytes) -> CarriedResponse:
        """Sends the request with `headers`, which replace those of the same name, and `body`. `endpoint` is the address
        (`host:port`) of the server that the gateway would choose. Raises `UpstreamUnavailable` if the request was sent
        before."""
        ...
