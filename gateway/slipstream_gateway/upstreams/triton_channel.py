"""The connection to one Triton server: told apart whether it cannot be reached or only takes long to answer."""

from __future__ import annotations

import asyncio

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slipstream_gateway.errors import UpstreamTimeout, UpstreamUnavailable
from slipstream_gateway.upstreams.tls import Credentials
from slipstream_gateway.upstreams.triton_errors import describe_call

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    # Above the 300 s that a gRPC server, Triton among them, lets pass between pings by default: more of them get a
    # connection closed ("too many pings") under its streams. Dead peers are found by the deadlines, long before.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),  # a request waits for the next attempt, so it must come soon
)
_RECONNECT_WAIT_S = 0.8  # longer than the longest pause between two attempts to connect
_WHY_TIMEOUT_S = 0.5


class TritonChannel:
    """A gRPC channel to `address` (`host:port`); `stub` has Triton's calls."""

    def __init__(self, address: str, *, connect_timeout_s: float, tls: Credentials | None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._channel = _channel(address, tls)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def aclose(self) -> None:
        await self._channel.close()

    async def connected(self) -> None:
        """Waits for the channel, within the connect deadline, so that a dead host is told from a slow answer."""
        ready, failed = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        first = state = self._channel.get_state(try_to_connect=True)
        if state is ready:
            return
        # A channel that has failed says so until it is connected again, so its state tells nothing of the attempt
        # that is due now: that one is waited for instead.
        wait_s = min(self._connect_timeout_s, _RECONNECT_WAIT_S) if first is failed else self._connect_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                while state is not ready:
                    if state is failed and first is not failed:
                        raise UpstreamUnavailable("The inference server cannot be reached.", detail=await self._why())
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError as exc:
            if state is failed:
                raise UpstreamUnavailable("The inference server cannot be reached.", detail=await self._why()) from exc
            raise UpstreamTimeout("The inference server did not accept a connection in time.") from exc

    async def _why(self) -> str:
        """What is wrong with a channel that has failed; asked for where TLS is spoken, of which much can be. The call
        fails at once with what the last attempt to connect failed with."""
        if self._tls is None:
            return ""
        try:
            await self.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_WHY_TIMEOUT_S)
        except grpc.RpcError as exc:
            return describe_call(exc) if isinstance(exc, grpc.aio.AioRpcError) else type(exc).__name__
        return ""


def _channel(address: str, tls: Credentials | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
