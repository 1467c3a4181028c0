"""The gRPC channel to Triton."""

from __future__ import annotations

from slipstream_gateway.upstreams.triton_channel import CHANNEL_OPTIONS

GRPC_SERVER_MIN_PING_INTERVAL_MS = 300_000


def test_pings_are_rarer_than_a_server_tolerates() -> None:
    options = dict(CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] > GRPC_SERVER_MIN_PING_INTERVAL_MS
    assert "grpc.http2.max_pings_without_data" not in options
