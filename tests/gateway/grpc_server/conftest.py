"""A running gRPC server on a free port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest
from slipstream_gateway.grpc_server.bounds import Bounds
from slipstream_gateway.grpc_server.call import Call
from slipstream_gateway.grpc_server.server import serving
from slipstream_gateway.grpc_server.status import CallFailed, Status

from tests.support.ports import lasting_ports

LARGEST_MESSAGE_BYTES = 4_000_000
HELD_BYTES = 12_000_000


class Server(NamedTuple):
    """`ended` gets the name of each call's end, "read" or "cancelled", and "poured" for each message of Pour."""

    port: int
    ended: list[str]


Serve = Callable[..., contextlib.AbstractAsyncContextManager[Server]]


@pytest.fixture
def serve() -> Serve:
    """Serves the methods Echo (each message back), Refuse, Break, Pour (100 MB for a message), StopItself (cancels its
    own task) and GiveUp (stops in the middle of a message that the client does not take)."""

    @contextlib.asynccontextmanager
    async def run(*, drain_s: float = 5.0, **bounds: float) -> AsyncIterator[Server]:
        [port] = lasting_ports(1)
        ended: list[str] = []

        async def echo(call: Call) -> None:
            try:
                while (message := await call.read()) is not None:
                    await call.write(message)
                ended.append("read")
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async def refuse(call: Call) -> None:
            raise CallFailed(Status.RESOURCE_EXHAUSTED, "no room")

        async def break_(call: Call) -> None:
            raise ValueError("a secret")

        async def pour(call: Call) -> None:
            await call.read()
            for _ in range(100):
                await call.write(bytes(1_000_000))
                ended.append("poured")

        async def stop_itself(call: Call) -> None:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(1)

        async def give_up(call: Call) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await call.write(bytes(100_000))
            await call.write(b"another message")

        handlers = {
            "/test/Echo": echo,
            "/test/Refuse": refuse,
            "/test/Break": break_,
            "/test/Pour": pour,
            "/test/StopItself": stop_itself,
            "/test/GiveUp": give_up,
        }
        address = f"127.0.0.1:{port}"
        async with serving(
            handlers,
            address,
            shared=False,
            drain_s=drain_s,
            bounds=Bounds(message_bytes=LARGEST_MESSAGE_BYTES, held_bytes=HELD_BYTES, **bounds),  # type: ignore[arg-type]
        ):
            yield Server(port, ended)

    return run
