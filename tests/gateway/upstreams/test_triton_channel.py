"""The gRPC channel to Triton."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from slipstream_core.endpoint_rules import EndpointRules
from slipstream_core.errors import UpstreamUnavailable
from slipstream_gateway.upstreams.triton_channel import CHANNEL_OPTIONS, TritonChannel
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.network import Network
from tests.support.polling import PATIENCE_S, soon

pytestmark = pytest.mark.integration

GRPC_SERVER_MIN_PING_INTERVAL_MS = 300_000
LATE_S = 1.0


def test_pings_are_rarer_than_a_server_tolerates() -> None:
    options = dict(CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] > GRPC_SERVER_MIN_PING_INTERVAL_MS
    assert "grpc.http2.max_pings_without_data" not in options


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Says its name; a stream says it twice, once the test lets it."""

    def __init__(self, name: str) -> None:
        self.name, self.goes_on = name, asyncio.Event()

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name=self.name)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:
        yield service_pb2.ModelStreamInferResponse(error_message=self.name)
        await self.goes_on.wait()
        yield service_pb2.ModelStreamInferResponse(error_message=self.name)


@asynccontextmanager
async def serving(name: str, address: str) -> AsyncIterator[tuple[Server, Any]]:
    server, servicer = grpc.aio.server(), Server(name)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    assert server.add_insecure_port(address)
    await server.start()
    try:
        yield servicer, server
    finally:
        await server.stop(grace=None)


class Names:
    """What the name `models.example` resolves to: there is no name server that a test could ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] = []
        self.looks = 0
        self.answers = threading.Event()
        self.answers.set()
        self._ask = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def _answer(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "models.example":
            return self._ask(host, port, *args, **kwargs)
        self.looks += 1
        assert self.answers.wait(PATIENCE_S)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found for one in self.addresses for found in self._ask(one, port, type=socket.SOCK_STREAM)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@asynccontextmanager
async def connecting(address: str, rules: EndpointRules | None = None) -> AsyncIterator[TritonChannel]:
    channel = TritonChannel(address, connect_timeout_s=PATIENCE_S, tls=None, rules=rules or EndpointRules())
    try:
        yield channel
    finally:
        await channel.aclose()


async def ask(channel: TritonChannel) -> str:
    """The name of the server that answers, once the channel is connected."""

    async def name() -> str:
        await channel.connected()
        return str((await channel.stub.ServerMetadata(service_pb2.ServerMetadataRequest())).name)

    return await soon(name, "a server that answers", ignoring=(UpstreamUnavailable, grpc.RpcError))


async def test_a_server_that_accepts_late_is_not_called_unreachable(free_ports: Callable[[int], list[int]]) -> None:
    """Longer than gRPC's pause between two attempts, as behind a distant TLS handshake or on a busy machine."""
    [port] = free_ports(1)
    with Network(port, delay_s=LATE_S) as late:
        async with serving("here", f"127.0.0.1:{port}"), connecting(f"127.0.0.1:{late.port}") as channel:
            await channel.connected()


async def test_a_server_that_restarted_between_two_calls_has_lost_its_connection(
    free_ports: Callable[[int], list[int]],
) -> None:
    [port] = free_ports(1)
    async with connecting(f"127.0.0.1:{port}") as channel:
        for name in "abcdef":
            async with serving(name, f"127.0.0.1:{port}"):
                assert await ask(channel) == name
                assert await ask(channel) == name
        # A call at the moment of a loss fails instead, by which the loss is noticed as well.
        assert 1 <= channel.losses <= 5


async def test_a_server_with_an_ipv6_address_is_reached_by_address_and_by_name(
    names: Names, free_ports: Callable[[int], list[int]]
) -> None:
    [port] = free_ports(1)
    names.addresses = ["::1"]
    async with serving("here", f"[::1]:{port}"):
        for host in ("[::1]", "models.example"):
            async with connecting(f"{host}:{port}") as channel:
                assert await ask(channel) == "here"


async def test_an_address_that_a_name_may_not_resolve_to_gets_no_connection(
    names: Names, free_ports: Callable[[int], list[int]]
) -> None:
    [port] = free_ports(1)
    rules = EndpointRules([".example"], shared=True)
    assert rules.refuse(f"grpc://models.example:{port}") is None
    names.addresses = ["127.0.0.1"]
    async with serving("here", f"127.0.0.1:{port}"), connecting(f"models.example:{port}", rules) as channel:
        with pytest.raises(UpstreamUnavailable, match="is unreachable") as caught:
            await channel.connected()
        assert caught.value.detail == "models.example is refused: 127.0.0.1 is this machine's loopback"
    async with serving("here", f"127.0.0.1:{port}"), connecting(f"models.example:{port}") as alone:
        assert await ask(alone) == "here"


async def test_a_name_is_followed_to_another_server_while_streams_end_at_the_first(
    names: Names, free_ports: Callable[[int], list[int]]
) -> None:
    [port] = free_ports(1)
    async with AsyncExitStack() as stack:
        first, stopping = await stack.enter_async_context(serving("first", f"127.0.0.1:{port}"))
        await stack.enter_async_context(serving("second", f"127.0.0.2:{port}"))
        channel = await stack.enter_async_context(connecting(f"models.example:{port}"))
        names.addresses = ["127.0.0.1"]
        assert await ask(channel) == "first"
        call = channel.stub.ModelStreamInfer()
        assert (await call.read()).error_message == "first"
        looks, names.addresses = names.looks, ["127.0.0.2"]
        assert await ask(channel) == "first"  # a connection that works is not left
        assert names.looks == looks
        stopped = asyncio.create_task(stopping.stop(grace=PATIENCE_S))
        while await ask(channel) != "second":
            pass
        first.goes_on.set()
        assert (await call.read()).error_message == "first"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await stopped


async def test_a_name_that_cannot_be_resolved_any_more_keeps_its_addresses(
    names: Names, free_ports: Callable[[int], list[int]]
) -> None:
    [port] = free_ports(1)
    async with connecting(f"models.example:{port}") as channel:
        with pytest.raises(UpstreamUnavailable) as caught:
            await channel.connected()
        assert "Name or service not known" in caught.value.detail
        names.addresses = ["::1", "127.0.0.1"]
        async with serving("before", f"127.0.0.1:{port}"):
            assert await ask(channel) == "before"
        names.addresses = []
        async with serving("after", f"127.0.0.1:{port}"):
            assert await ask(channel) == "after"


async def test_a_request_that_waits_for_a_name_is_refused_when_the_channel_is_closed(names: Names) -> None:
    """It is not cancelled: its task may do other work, such as looking after other servers."""
    names.answers.clear()
    try:
        async with connecting("models.example:1") as channel:
            waiting = asyncio.create_task(channel.connected())
            await soon(lambda: names.looks, "a look-up of the name")
        with pytest.raises(UpstreamUnavailable, match="is unreachable"):
            await waiting
    finally:
        names.answers.set()


async def test_requests_that_wait_at_the_same_time_share_one_look(
    names: Names, free_ports: Callable[[int], list[int]]
) -> None:
    [port] = free_ports(1)
    names.addresses = ["127.0.0.1"]
    async with serving("one", f"127.0.0.1:{port}"), connecting(f"models.example:{port}") as channel:
        await asyncio.gather(*(channel.connected() for _ in range(50)))
        assert names.looks == 1
