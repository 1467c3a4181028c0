"""Probes and replays that break servers run on few of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.errors import UpstreamUnavailable
from slipstream_core.settings import ConformanceSettings
from slipstream_gateway.upstreams.pool import Replica
from slipstream_gateway.upstreams.refused_upstream import RefusedUpstream

from tests.gateway.pair_manifest import chat, manifest_text
from tests.gateway.request.breaking_pool import Pool, is_up
from tests.support.polling import PATIENCE_S, eventually


@pytest.mark.integration
def test_a_probe_that_ends_servers_runs_on_two_and_is_not_sent_again_for_a_while(
    gateway: Any, free_ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    pool = Pool(free_ports(4), tmp_path / "read.jsonl", deadly="fibonacci")
    try:
        settings = ConformanceSettings(enabled=True, probe_s=0.2, every_s=1.0)
        served = gateway(manifest_text(pool.urls, pool.urls), conformance=settings)
        eventually(lambda: pool.down == 2, "the ends of two servers")
        refused = {"subject": "greedy_speculation", "result": "no_data"}
        eventually(lambda: served.metric("slipstream_conformance_checks_total", **refused) >= 4, "further checks")
        pool.restart()
        eventually(lambda: served.metric("slipstream_conformance_checks_total", **refused) >= 12, "further checks")
        assert pool.down == 0
        assert pool.servers("fibonacci") == 2
        [pair] = httpx.get(f"{served.url}/v1/evidence", timeout=PATIENCE_S).json()["data"]
        details = {finding["detail"] for server in pair["conformance"] for finding in server["findings"]}
        assert any("Servers broke 2 times with this request" in detail for detail in details)
    finally:
        pool.stop()


async def test_a_replay_that_ends_its_server_is_not_repeated(
    bench: Any, openai_server: Any, free_ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    """After another break of the same content, no replay is sent at all."""
    pool = Pool(free_ports(1), tmp_path / "read.jsonl")
    try:
        made = bench(manifest_text(pool.urls, [openai_server().url], policy=", parityShare: 1"))
        await made.ask(chat("deadly"))
        await made.counted({"failed": 1})
        assert pool.runs() == {"deadly": 1}
        another = Replica("another", RefusedUpstream("of the test"))
        made.deaths.failed("pair", made.job(chat("deadly")).request, another, UpstreamUnavailable("broke", broke=True))
        await asyncio.to_thread(eventually, lambda: pool.down == 1)
        pool.restart()
        await asyncio.to_thread(eventually, lambda: is_up(pool.urls[0]))
        await made.ask(chat("deadly"))
        await made.counted({"failed": 2})
        assert pool.runs() == {"deadly": 1}
    finally:
        pool.stop()
