"""uvicorn's HTTP protocol, made fit for clients that nobody knows."""

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
    """What uvicorn takes for `http`: makes a protocol per connection, all of which share one budget and one order of
    idle connections. It is pickled into workers, each of which so gets its own."""
    budget, idle = BodyBudget(bounds.bodies_bytes), IdleConnections()
    protocol = functools.partial(BoundedHttp, bounds=bounds, budget=budget, idle=idle)
    return cast("type[asyncio.Protocol]", protocol)


def tune(listener: socket.socket) -> None:
    """Has the connections of `listener` push back soon when a client does not read, instead of after the megabytes
    that the kernel would take, and gives up clients that acknowledge nothing. Where the system cannot, nothing
    changes."""
    for name, value in (("TCP_NOTSENT_LOWAT", _UNSENT_BYTES), ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS)):
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
