"""Triton's own /metrics count the running and waiting requests."""

from __future__ import annotations

import asyncio

import httpx
from slipstream_tools.up.triton_server import TritonServer

from tests.contract.engine_client import Engine
from tests.support.polling import soon
from tests.triton.conftest import ENDLESS, MODEL, SLOTS, Fill


async def test_requests_are_counted_from_their_arrival_to_their_end(
    triton: Engine, fill_slots: Fill, triton_server: TritonServer
) -> None:
    def count() -> float:
        text = httpx.get(f"http://127.0.0.1:{triton_server.ports.metrics}/metrics").text
        [line] = [line for line in text.splitlines() if line.startswith("slipstream_engine_requests{")]
        assert f'model="{MODEL}"' in line
        return float(line.rpartition(" ")[2])

    await soon(lambda: count() == 0, "no request runs")
    running = await fill_slots()
    waiting = [asyncio.create_task(triton.ask(**ENDLESS)) for _ in range(2)]
    await soon(lambda: count() == SLOTS + 2, "running and waiting requests are counted")
    for task in waiting:
        task.cancel()
    await running.aclose()
    await soon(lambda: count() == 0, "no request runs")
