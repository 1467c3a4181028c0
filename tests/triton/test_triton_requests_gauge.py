"""Triton's own /metrics count the engine's running and waiting requests."""

from __future__ import annotations

from typing import Any

import httpx
from slipstream_tools.up.triton_server import TritonServer

from tests.support.polling import soon

SLOTS = 8


async def test_requests_are_counted_from_their_arrival_to_their_end(
    triton: Any, fill_slots: Any, triton_server: TritonServer
) -> None:
    def count() -> float:
        text = httpx.get(f"http://127.0.0.1:{triton_server.ports.metrics}/metrics").text
        [line] = [line for line in text.splitlines() if line.startswith("slipstream_engine_requests{")]
        assert 'model="embedded"' in line
        return float(line.rpartition(" ")[2])

    await soon(lambda: count() == 0, "no request runs")
    running = await fill_slots()
    waiting = [triton.open(**triton.ENDLESS) for _ in range(2)]
    await soon(lambda: count() == SLOTS + 2, "running and waiting requests are counted")
    for stream in (*running, *waiting):
        stream.cancel()
    await soon(lambda: count() == 0, "no request runs")
