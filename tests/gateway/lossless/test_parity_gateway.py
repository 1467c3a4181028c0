"""Parity in the running gateway: replays show in its own counters and in no other, and end with the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually

SPECULATE = {"x-slipstream-mode": "speculative"}


def test_replays_are_counted_and_are_no_requests(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    plain, speculative = openai_server(), openai_server()
    served = gateway(manifest_text([plain.url], [speculative.url], policy=", parityShare: 1"))
    plain.odd_token = 1
    for stream in (False, True):
        body = chat("tokens=3", temperature=0, stream=stream)
        response = httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=SPECULATE, timeout=PATIENCE_S)
        assert response.headers["x-slipstream-arm"] == "speculative"
    eventually(lambda: served.metric("slipstream_parity_checked_total", pair="pair") == 2)
    assert served.metric("slipstream_parity_mismatched_total", pair="pair") == 2
    assert served.metric("slipstream_parity_dropped_total") == 0
    assert len(plain.requests) == len(speculative.requests) == 2
    assert served.metric("slipstream_requests_total") == 2
    assert served.metric("slipstream_requests_total", arm="plain") == 0
    [shown] = httpx.get(f"{served.url}/v1/evidence", timeout=PATIENCE_S).json()["data"]
    assert sum(count["checked"] for count in shown["parity"]) == 2
    assert sum(count["mismatched"] for count in shown["parity"]) == 2


def test_gateway_stops_at_once_in_the_middle_of_a_replay(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    plain, speculative = openai_server(), openai_server()
    served = gateway(manifest_text([plain.url], [speculative.url], policy=", parityShare: 1"))
    plain.pace_s = 60.0
    body = chat("tokens=12 gap", temperature=0, stream=True)
    assert httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=SPECULATE, timeout=PATIENCE_S).is_success
    eventually(lambda: len(plain.requests) == 1)
    started_s = time.monotonic()
    served.stop()
    assert time.monotonic() - started_s < 60  # what is left of the replay takes 11 minutes
    assert plain.cancelled.wait(PATIENCE_S)
