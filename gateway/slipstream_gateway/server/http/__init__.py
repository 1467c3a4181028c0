"""uvicorn's HTTP protocol, hardened against untrusted clients."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import cast

from slipstream_gateway.server.http.bounds import SPARE_CONNECTIONS, BodyBudget, Bounds
from slipstream_gateway.server.http.idle import IdleConnections
from slipstream_gateway.server.http.protocol import BoundedHttp

__all__ = ["SPARE_CONNECTIONS", "BodyBudget", "BoundedHttp", "Bounds", "bounded_http", "tune"]

_UNSENT_BYTES = 16 * 1024
_UNACKNOWLEDGED_MS = 120_000


def bounded_http(bounds: Bounds) -> type[asyncio.Protocol]:
    """The value of uvicorn's option `http`: constructs a protocol for each connection. All of them share one budget and
    one order of idle connections. The value is pickled for the workers, so that each worker has its own."""
    budget, idle = BodyBudget(bounds.bodies_bytes), IdleConnections()
    protocol = functools.partial(BoundedHttp, bounds=bounds, budget=budget, idle=idle)
    return cast("type[asyncio.Protocol]", protocol)


def tune(listener: socket.socket) -> None:
    """Applies back-pressure to the clients of `listener` that do not read: soon, not after the megabytes that the
    kernel would buffer. Connections of clients that acknowledge nothing are dropped. No effect on systems without these
    options."""
    for name, value in (("TCP_NOTSENT_LOWAT", _UNSENT_BYTES), ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS)):
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
