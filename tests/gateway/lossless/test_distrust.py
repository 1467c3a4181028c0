"""Answers in traffic take a capability from every server of their pair, whatever other pairs it serves."""

from __future__ import annotations

import time

from slipstream_core.manifest import compile_table, parse
from slipstream_core.settings import ConformanceSettings
from slipstream_core.types import Capability, Reason
from slipstream_gateway.admission import Admission
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.lossless.conformance import Conformance
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.upstreams.refused_upstream import RefusedUpstream

from tests.gateway.lossless.vllm_pair import vllm_pair


async def test_distrust_of_the_second_pair_of_a_server_counts() -> None:
    fleet = Fleet(lambda key: RefusedUpstream("of the test"), clock=time.monotonic)
    admission = Admission(max_in_flight=9, max_queued=9, queue_timeout_s=1.0)
    settings = ConformanceSettings(enabled=True)
    conformance = Conformance(fleet=fleet, admission=admission, settings=settings, deaths=QueriesOfDeath())
    assert conformance.replicas() == []  # there is no table yet
    shared = "http://127.0.0.1:1"
    fleet.swap(compile_table(parse(f"{vllm_pair('one', shared)}---\n{vllm_pair('two', shared)}")))
    conformance.distrust("two", Capability.SAMPLED_SPECULATION, "drift")
    told = [(server.pair, server.withheld[Capability.SAMPLED_SPECULATION]) for server in conformance.replicas()]
    assert told == [("one", Reason.ENGINE_NOT_LOSSLESS), ("two", Reason.ENGINE_NOT_LOSSLESS)]
    conformance.distrust("unknown", Capability.GREEDY_SPECULATION, "drift")
    assert {server.withheld[Capability.GREEDY_SPECULATION] for server in conformance.replicas()} == {
        Reason.ENGINE_UNVERIFIED
    }
    await fleet.aclose()
