"""Slipstream's own engine under the same check: greedy equality and counts over the real Triton."""

from __future__ import annotations

from slipstream_core.manifest import WireProtocol
from slipstream_core.manifest.capabilities import OWN_ENGINE
from slipstream_core.manifest.table import Backend
from slipstream_gateway.lossless.check import Check, Side
from slipstream_gateway.lossless.findings import Result, Subject
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.upstreams.pool import Replica

from tests.support.engines import engine_in_triton


async def test_embedded_engine_is_greedily_lossless_and_follows_draft_lengths(triton_endpoint: str) -> None:
    backend = Backend(
        protocol=WireProtocol.TRITON,
        endpoints=(f"grpc://{triton_endpoint}",),
        model="embedded",
        capabilities=OWN_ENGINE,
        pool="pair",
        own_engine=True,
    )
    upstream = engine_in_triton(triton_endpoint, connect_timeout_s=10.0)
    replica = Replica(triton_endpoint, upstream)
    try:
        sides = {"speculative": Side(replica, backend, 4), "plain": Side(replica, backend, 0)}
        findings = await Check(pair="pair", seed=1, deaths=QueriesOfDeath(), **sides).run()
    finally:
        await upstream.aclose()
    results = {finding.subject: finding.result for finding in findings}
    assert results == {Subject.GREEDY_SPECULATION: Result.PASS, Subject.DRAFT_LENGTH: Result.PASS}
