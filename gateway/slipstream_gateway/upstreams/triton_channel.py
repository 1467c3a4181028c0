"""The connection to one Triton server. It distinguishes an unreachable server from a slow one.

The name is resolved here and not by gRPC, so that connections only go to checked addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections import deque
from typing import NamedTuple
from urllib.parse import urlsplit

import grpc
from slipstream_core.checked_resolver import CheckedResolver
from slipstream_core.endpoint_rules import Address, EndpointRules
from slipstream_core.errors import ConnectTimeout, UpstreamUnavailable
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slipstream_gateway.upstreams.tls import Credentials
from slipstream_gateway.upstreams.triton_errors import describe_call

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    # Above 300 s, the minimum interval between pings that a gRPC server, Triton among them, accepts by default: with
    # more frequent pings it closes the connection ("too many pings") under its streams. Deadlines detect dead peers
    # long before.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),  # short, because requests wait for the next attempt
)
_RECONNECT_WAIT_S = 0.8  # longer than the longest pause between two connection attempts
_RESOLVE_AGAIN_S = 1.0
_WHY_TIMEOUT_S = 0.5
_MOST_LEFT = 16
_CANNOT = "The upstream is unreachable."


class _Target(NamedTuple):
    """Addresses with their ports, in gRPC's notation (its `naming.md`)."""

    family: str
    addresses: tuple[str, ...]

    def is_same(self, other: _Target) -> bool:
        """Name servers return the same addresses in varying order."""
        return self.family == other.family and set(self.addresses) == set(other.addresses)


class TritonChannel:
    """A gRPC channel to `address` (`host:port`), as far as `rules` permit the addresses that its name resolves to.
    `stub` has Triton's calls once `connected` has returned. `losses` counts lost connections: another process may have
    responded since then."""

    stub: service_pb2_grpc.GRPCInferenceServiceStub

    def __init__(
        self, address: str, *, connect_timeout_s: float, tls: Credentials | None, rules: EndpointRules
    ) -> None:
        self._address, self._connect_timeout_s, self._tls = address, connect_timeout_s, tls
        self._resolver = CheckedResolver(rules)
        self._resolution: asyncio.Task[None] | None = None
        self._resolved_s = 0.0
        self._refusal = ""
        self._target = _Target("", ())
        self._channel: grpc.aio.Channel | None = None
        self.losses = 0
        self._was_ready = False
        self._left: deque[grpc.aio.Channel] = deque()  # to former addresses, where streams may still run

    async def aclose(self) -> None:
        if self._resolution is not None:
            self._resolution.cancel()
        for channel in (*self._left, self._channel):
            if channel is not None:
                await channel.close()

    async def connected(self) -> None:
        """Waits for the channel within the connect deadline, so that a dead host differs from a slow answer."""
        ready, failed = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        if self._channel is not None and self._channel.get_state(try_to_connect=True) is ready:
            self._was_ready = True
            return
        self.losses += self._was_ready
        self._was_ready = False
        channel = await self._resolved()
        first = state = channel.get_state(try_to_connect=True)
        # A failed channel keeps its state until it is connected again, so the state does not reflect the attempt that
        # is due now. Wait for that attempt instead.
        wait_s = min(self._connect_timeout_s, _RECONNECT_WAIT_S) if first is failed else self._connect_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                while state is not ready:
                    if state is failed and first is not failed:
                        raise UpstreamUnavailable(_CANNOT, detail=await self._why())
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError as exc:
            if state is failed:
                raise UpstreamUnavailable(_CANNOT, detail=await self._why()) from exc
            raise ConnectTimeout("The upstream did not accept a connection in time.") from exc
        self._was_ready = True

    async def _resolved(self) -> grpc.aio.Channel:
        """The channel to the current addresses of the name, or the last ones if the resolution failed. Concurrent
        requests share one lookup."""
        is_over = self._resolution is None or self._resolution.done()
        if self._resolution is None or (is_over and time.monotonic() - self._resolved_s >= _RESOLVE_AGAIN_S):
            self._resolution = asyncio.create_task(self._resolve())
        resolution = self._resolution
        # Not awaited directly: `aclose` cancels it without cancelling the waiting requests.
        await asyncio.wait((resolution,), timeout=self._connect_timeout_s)
        if self._channel is not None:
            return self._channel
        if not resolution.done():
            raise ConnectTimeout("The upstream's name was not resolved in time.")
        raise UpstreamUnavailable(_CANNOT, detail=self._refusal)

    async def _resolve(self) -> None:
        try:
            target = await self._find()
        except OSError as exc:
            self._refusal = str(exc)
        else:
            if not target.is_same(self._target):
                await self._move(target)
        self._resolved_s = time.monotonic()

    async def _find(self) -> _Target:
        """Raises `OSError`."""
        parts = urlsplit(f"//{self._address}")
        host, port = parts.hostname or "", parts.port or 0
        with contextlib.suppress(ValueError):  # the rules were applied to the name before the channel was created
            return _target([(ipaddress.ip_address(host), port)])
        found = await self._resolver.resolve(host, port, socket.AF_UNSPEC)
        return _target([(ipaddress.ip_address(one["host"]), one["port"]) for one in found])

    async def _move(self, target: _Target) -> None:
        if self._channel is not None:
            self._left.append(self._channel)
        self._target, self._channel = target, self._new_channel(target)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        while len(self._left) > _MOST_LEFT:
            await self._left.popleft().close()

    def _new_channel(self, target: _Target) -> grpc.aio.Channel:
        """The server's certificate is checked against the address that the pair names."""
        address = f"{target.family}:{','.join(target.addresses)}"
        options = (
            *CHANNEL_OPTIONS,
            ("grpc.default_authority", self._address),
            # The deadline of one connection attempt, up to the server's settings, in spite of its name (gRPC's
            # `connection-backoff.md`, MIN_CONNECT_TIMEOUT).
            ("grpc.min_reconnect_backoff_ms", round(self._connect_timeout_s * 1000)),
        )
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=options)
        credentials = grpc.ssl_channel_credentials(self._tls.ca, self._tls.key, self._tls.certificate)
        return grpc.aio.secure_channel(address, credentials, options=options)

    async def _why(self) -> str:
        """The problem of a failed channel, queried for TLS, which has many failure modes. The call fails at once with
        the error of the last connection attempt."""
        if self._tls is None:
            return ""
        try:
            await self.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_WHY_TIMEOUT_S)
        except grpc.RpcError as exc:
            return describe_call(exc) if isinstance(exc, grpc.aio.AioRpcError) else type(exc).__name__
        return ""


def _target(found: list[tuple[Address, int]]) -> _Target:
    """IPv4 only if there is any, because a channel uses one address family."""
    four = [f"{address}:{port}" for address, port in found if address.version == 4]
    six = [f"[{address}]:{port}" for address, port in found if address.version == 6]
    return _Target("ipv4", tuple(four)) if four else _Target("ipv6", tuple(six))
