"""The way to one OpenAI application: by HTTP, or through the pipe of a Triton server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Content(Protocol):
    """The body of a response."""

    async def readany(self) -> bytes:
        """The next part, at once if there is one; empty at the end. Raises `UpstreamError`, or one of
        `network_errors.NETWORK_ERRORS`."""
        ...


class HttpResponse(Protocol):
    """A response whose head has arrived. `headers` have names in lower case. The caller ends it by `close`, which
    cancels what still runs, or by `release` after the last event."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def content(self) -> Content: ...

    def close(self) -> None: ...

    def release(self) -> None: ...


class Fetched(NamedTuple):
    """A whole response."""

    status: int
    body: bytes


class Transport(Protocol):
    """The connections to one server. Methods raise `UpstreamError`, `UpstreamTimeout` among them.

    `address` is `host:port`. `losses` counts lost connections where they are known: another process may respond since
    then. `answers_probes`: see `Upstream`. `is_of_engines`: nothing but an engine by Slipstream's
    contract answers there.
    """

    answers_probes: bool
    is_of_engines: bool

    @property
    def address(self) -> str: ...

    @property
    def losses(self) -> int: ...

    async def connected(self) -> None:
        """Waits for the connection where all requests share one."""
        ...

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float | None = None
    ) -> HttpResponse:
        """Sends a request to `path`, which is relative; returns when the head of the response has arrived. The server
        gives up the request after `timeout_s` where it can be told."""
        ...

    async def fetch(
        self, method: str, path: str, headers: Mapping[str, str], *, timeout_s: float | None = None
    ) -> Fetched:
        """The whole response to a request without a body."""
        ...

    async def aclose(self) -> None: ...
