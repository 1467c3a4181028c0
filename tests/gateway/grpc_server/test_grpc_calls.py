"""The gRPC server with the client of grpcio: messages, statuses, flow control, cancellation, and its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.grpc_server.conftest import LARGEST_MESSAGE_BYTES, Serve, Server
from tests.support.polling import soon

pytestmark = pytest.mark.integration
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@contextlib.asynccontextmanager
async def calling(server: Server, name: str = "Echo", *options: tuple[str, Any]) -> AsyncIterator[Any]:
    """Starts calls of one method."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=[*UNLIMITED, *options]) as channel:
        yield channel.stream_stream(f"/test/{name}")


async def echoed(method: Any, messages: Sequence[bytes]) -> list[bytes]:
    """The answers to `messages`, which are sent without waiting for any."""
    call = method(iter(messages))
    return [bytes(message) async for message in call]


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_535, 1_048_576, LARGEST_MESSAGE_BYTES])
async def test_messages_of_any_size_pass_both_ways(serve: Serve, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with serve() as server, calling(server) as method:
        assert await echoed(method, [message, b"end"]) == [message, b"end"]


@given(sizes=st.lists(st.integers(0, 70_000), max_size=12))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_streams_of_messages_keep_their_order(serve: Serve, sizes: list[int]) -> None:
    messages = [bytes([place % 256]) * size for place, size in enumerate(sizes)]
    async with serve() as server, calling(server) as method:
        assert await echoed(method, messages) == messages


async def test_many_calls_share_a_connection(serve: Serve) -> None:
    async with serve() as server, calling(server) as method:
        sent = [[b"%d" % call, bytes(call * 7)] for call in range(300)]
        assert await asyncio.gather(*(echoed(method, messages) for messages in sent)) == sent
        assert server.ended == ["read"] * 300


async def test_a_message_over_the_limit_ends_its_call_only(serve: Serve) -> None:
    async with serve() as server, calling(server) as method:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echoed(method, [bytes(LARGEST_MESSAGE_BYTES + 1)])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(LARGEST_MESSAGE_BYTES) in str(caught.value.details())
        assert await echoed(method, [b"next"]) == [b"next"]


async def test_a_compressed_message_is_refused(serve: Serve) -> None:
    option = ("grpc.default_compression_algorithm", grpc.Compression.Gzip.value)
    async with serve() as server, calling(server, "Echo", option) as method:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echoed(method, [bytes(10_000)])
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("name", "code", "details"),
    [
        ("Refuse", grpc.StatusCode.RESOURCE_EXHAUSTED, "no room"),
        ("Break", grpc.StatusCode.INTERNAL, "internal error"),
        ("Missing", grpc.StatusCode.UNIMPLEMENTED, "the method does not exist"),
        ("StopItself", grpc.StatusCode.INTERNAL, "internal error"),
    ],
)
async def test_a_failed_call_has_a_status(serve: Serve, name: str, code: grpc.StatusCode, details: str) -> None:
    async with serve() as server, calling(server, name) as method:
        call = method()  # grpcio reports a write that comes too late as an error of its own
        assert (await call.code(), await call.details()) == (code, details)


async def test_a_cancelled_call_cancels_its_handler(serve: Serve) -> None:
    async with serve() as server, calling(server) as method:
        call = method()
        await call.write(b"x")
        assert await call.read() == b"x"
        call.cancel()
        await soon(lambda: server.ended == ["cancelled"], "the handler is cancelled")


async def test_a_lost_connection_cancels_its_handlers(serve: Serve) -> None:
    async with serve() as server:
        async with calling(server) as method:
            calls = [method() for _ in range(5)]
            for call in calls:
                await call.write(b"x")
                assert await call.read() == b"x"
        await soon(lambda: server.ended == ["cancelled"] * 5, "the handlers are cancelled")


async def test_a_client_that_does_not_read_stops_its_handler_only(serve: Serve) -> None:
    """100 MB for a client with a window of 64 kB: the rest waits, and other calls go on."""
    window = ("grpc.http2.lookahead_bytes", 65_536)
    async with (
        serve() as server,
        calling(server, "Pour", window, ("grpc.http2.bdp_probe", 0)) as pour,
        calling(server) as echo,
    ):
        call = pour()
        await call.write(b"x")
        assert len(await call.read()) == 1_000_000
        assert await echoed(echo, [b"still here"]) == [b"still here"]
        received = 1
        while await call.read() is not grpc.aio.EOF:
            received += 1
        assert received == 100


async def test_calls_that_run_are_ended_before_the_server_stops(serve: Serve) -> None:
    async with contextlib.AsyncExitStack() as stack:
        running = contextlib.AsyncExitStack()
        server = await running.enter_async_context(serve())
        method = await stack.enter_async_context(calling(server))
        call = method()
        await call.write(b"before")
        assert await call.read() == b"before"
        stopping = asyncio.ensure_future(running.aclose())
        await asyncio.sleep(0.1)
        await call.write(b"after")
        assert await call.read() == b"after"
        assert not stopping.done()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await stopping


async def test_calls_that_take_too_long_are_ended_with_the_server(serve: Serve) -> None:
    async with contextlib.AsyncExitStack() as stack:
        running = contextlib.AsyncExitStack()
        server = await running.enter_async_context(serve(drain_s=0.1))
        method = await stack.enter_async_context(calling(server))
        call = method()
        await call.write(b"before")
        assert await call.read() == b"before"
        await running.aclose()
        assert server.ended == ["cancelled"]
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
