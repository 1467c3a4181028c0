"""What a gateway's report says of servers that may not speculate: scripted engines, a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest.reports import WithheldServer, read_report
from slipstream_core.settings import ClusterSettings, ConformanceSettings, GatewaySettings
from slipstream_core.types import Capability, Reason, Withheld
from slipstream_gateway.sources.cluster.server_report import MOST_SERVERS, MOST_WITHHELD_BYTES, withheld_servers

from tests.gateway.lossless.scripted_engine import ScriptedEngine
from tests.support.polling import eventually

BOTH = ("greedy_speculation", "sampled_speculation")


@pytest.fixture
def scripted() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.stop()


def _serve(space: Any, serve: Any, engine: ScriptedEngine, **conformance: Any) -> Any:
    space.pair("acme", engine={"kind": "vllm", "model": "up", "endpoints": [engine.url]})
    space.policy("acme", parityShare=0)
    cluster = ClusterSettings(kubeconfig=space.kubeconfig(), namespaces=(space.name,), report_namespace=space.name)
    checks = ConformanceSettings(**{"enabled": True, "probe_s": 0.2} | conformance)
    return serve(GatewaySettings(cluster=cluster, conformance=checks))


def _withheld(space: Any) -> list[WithheldServer]:
    [report] = [read_report(lease) for lease in space.reports()] or [None]
    return [] if report is None else [*report.withheld.get(f"{space.name}/ModelPair/acme", ())]


def test_server_whose_sampled_answers_are_not_the_targets_is_reported(
    space: Any, serve: Any, scripted: ScriptedEngine
) -> None:
    scripted.garbage = True
    _serve(space, serve, scripted)
    [server] = eventually(lambda: _are(_withheld(space), "engine_not_lossless"), "the finding is reported")
    assert (server.server, server.capabilities) == (scripted.url, ("sampled_speculation",))
    assert "not the target's" in server.detail


def test_server_without_the_plugin_is_reported_until_it_has_it(
    space: Any, serve: Any, scripted: ScriptedEngine
) -> None:
    facts, scripted.facts = scripted.facts, None
    _serve(space, serve, scripted)
    [server] = eventually(lambda: _are(_withheld(space), "engine_cannot"), "the server is reported")
    assert (server.server, server.capabilities) == (scripted.url, BOTH)
    scripted.facts = facts
    eventually(lambda: not _withheld(space), "the server is reported no more")


def _are(servers: list[WithheldServer], reason: str) -> list[WithheldServer]:
    return servers if servers and {server.reason for server in servers} == {reason} else []


def _served(name: str, *replicas: Any) -> Any:
    route = SimpleNamespace(key=f"team/{name}")
    return SimpleNamespace(route=route, speculative=SimpleNamespace(replicas=replicas))


def _replica(name: str, **withheld: Withheld) -> Any:
    return SimpleNamespace(name=name, withheld_now=lambda: {Capability(key): why for key, why in withheld.items()})


def test_each_reason_of_a_server_is_an_entry_and_free_servers_have_none() -> None:
    broken = Withheld(reason=Reason.ENGINE_NOT_LOSSLESS, detail="2 of 4 greedy answers differ")
    unknown = Withheld(reason=Reason.ENGINE_UNVERIFIED, detail="no check yet")
    mixed = _replica("http://a", greedy_speculation=broken, sampled_speculation=unknown)
    plain = SimpleNamespace(route=None, speculative=None)
    snapshot: Any = SimpleNamespace(routes={"acme": _served("acme", mixed, _replica("http://b")), "plain": plain})
    assert withheld_servers(snapshot) == {
        "team/ModelPair/acme": [
            WithheldServer(
                server="http://a",
                capabilities=("greedy_speculation",),
                reason="engine_not_lossless",
                detail="2 of 4 greedy answers differ",
            ),
            WithheldServer(
                server="http://a",
                capabilities=("sampled_speculation",),
                reason="engine_unverified",
                detail="no check yet",
            ),
        ]
    }


def test_many_servers_and_pairs_stay_within_the_annotation() -> None:
    why = Withheld(reason=Reason.ENGINE_CANNOT, detail="x" * 10_000)
    replicas = [_replica(f"http://server-{number}", greedy_speculation=why) for number in range(50)]
    routes = {str(number): _served(f"pair-{number}", *replicas) for number in range(1000)}
    snapshot: Any = SimpleNamespace(routes=routes)
    found = withheld_servers(snapshot)
    assert 10 < len(found) < 1000
    assert {len(servers) for servers in found.values()} == {MOST_SERVERS}
    assert len(msgspec.json.encode(found)) <= MOST_WITHHELD_BYTES
