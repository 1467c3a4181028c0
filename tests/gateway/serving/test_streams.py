"""Streams under bad conditions: clients that leave, clients that do not read, too many at once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from slipstream_core.settings import Deadlines, Limits
from slipstream_gateway.request.call import Call

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.gateway_process import stream
from tests.support.polling import PATIENCE_S, eventually


@pytest.mark.parametrize("script", ["tokens=1000 gap=0.05", "tokens=2 gap=30"])
def test_upstream_is_cancelled_when_the_client_leaves(gateway: Callable[..., Any], upstream: Any, script: str) -> None:
    served = gateway(manifest_text([upstream.url]))
    connection = stream(served, chat(script))
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    connection.close()
    assert upstream.cancelled.wait(PATIENCE_S)
    eventually(lambda: served.metric("slipstream_requests_total", status="cancelled") == 1, "the record")
    assert served.metric("slipstream_requests_in_flight") == 0


def test_what_a_client_leaves_unread_is_freed_without_a_collection(gateway: Callable[..., Any], upstream: Any) -> None:
    served = gateway(manifest_text([upstream.url]))
    gc.collect()
    gc.disable()
    try:
        assert httpx.post(f"{served.url}/v1/chat/completions", json=chat("tokens=2", stream=True)).is_success
        connection = stream(served, chat("tokens=4000 big=4000"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        connection.close()
        eventually(lambda: served.metric("slipstream_requests_total", status="cancelled") == 1, "the record")
        eventually(lambda: not [each for each in gc.get_objects() if isinstance(each, Call)], "its end")
    finally:
        gc.enable()


def test_upstream_is_cancelled_when_the_client_leaves_before_the_first_byte(
    gateway: Callable[..., Any], upstream: Any
) -> None:
    served = gateway(manifest_text([upstream.url]))
    connection = stream(served, chat("slow=30"))
    eventually(lambda: len(upstream.requests) == 1, "the request")
    connection.close()
    eventually(lambda: served.metric("slipstream_requests_total", status="cancelled") == 1, "the record")
    assert served.metric("slipstream_requests_in_flight") == 0


def test_slow_reader_holds_back_its_own_stream_only(gateway: Callable[..., Any], upstream: Any) -> None:
    served = gateway(manifest_text([upstream.url]))
    connection = stream(served, chat("tokens=4000 big=4000"))  # 64 MB, if anybody read it
    sent = []

    def stalled() -> bool:
        sent.append(upstream.sent_bytes)
        time.sleep(0.2)
        return upstream.sent_bytes == sent[-1] > 0

    eventually(stalled, "back-pressure")
    assert upstream.sent_bytes < 24_000_000  # the sockets' buffers, not the gateway's memory
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=chat("tokens=3", stream=True), timeout=PATIENCE_S)
    assert answer.text.endswith("data: [DONE]\n\n")
    connection.close()
    assert upstream.cancelled.wait(PATIENCE_S)


def test_client_that_never_reads_does_not_hold_its_place_for_ever(gateway: Callable[..., Any], upstream: Any) -> None:
    served = gateway(manifest_text([upstream.url]), deadlines=Deadlines(connect_s=PATIENCE_S, total_s=5.0))
    with stream(served, chat("tokens=4000 big=4000")):  # 64 MB
        eventually(lambda: served.metric("slipstream_requests_total", status="client_timeout") == 1, "the end")
        assert served.metric("slipstream_requests_in_flight") == 0
    assert served.metric("slipstream_upstream_errors_total") == 0


def test_waiting_too_long_in_the_queue_is_429(gateway: Callable[..., Any], upstream: Any) -> None:
    served = gateway(manifest_text([upstream.url]), limits=Limits(max_in_flight=1, queue_timeout_s=0.2))
    connection = stream(served, chat("tokens=1000 gap=0.05"))
    eventually(lambda: served.metric("slipstream_requests_in_flight") == 1, "one in flight")
    assert httpx.post(f"{served.url}/v1/chat/completions", json=chat("x"), timeout=PATIENCE_S).status_code == 429
    connection.close()
    eventually(lambda: served.metric("slipstream_requests_in_flight") == 0, "the end")
    assert httpx.post(f"{served.url}/v1/chat/completions", json=chat("x"), timeout=PATIENCE_S).status_code == 200
