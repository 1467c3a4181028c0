"""Listening for clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial

from slipstream_core.listeners import bound_socket, split_authority

from slipstream_gateway.grpc_server.bounds import Bounds
from slipstream_gateway.grpc_server.connection import Connection, Handler
from slipstream_gateway.grpc_server.connections import Connections

_UNIX = "unix:"


@contextlib.asynccontextmanager
async def serving(
    handlers: Mapping[str, Handler],
    address: str,
    *,
    shared: bool,
    drain_s: float,
    bounds: Bounds,
) -> AsyncIterator[None]:
    """Serves `handlers`, by the path of their method, on `address` (`host:port` or `unix:path`) while the context is
    open. `shared`: other processes serve the same port. On exit open calls have `drain_s` to end. Raises
    `OSError` if the address is not available."""
    connections = Connections(bounds)
    connect = partial(Connection, handlers, connections)
    loop = asyncio.get_running_loop()
    if address.startswith(_UNIX):
        server = await loop.create_unix_server(connect, address.removeprefix(_UNIX))
    else:
        listener = bound_socket(*split_authority(address), is_shared=shared)
        server = await loop.create_server(connect, sock=listener)
    try:
        yield
    finally:
        server.close()
        await asyncio.sleep(0)  # connections that were accepted just before
        await asyncio.gather(*(connection.drain(drain_s) for connection in list(connections.open)))
