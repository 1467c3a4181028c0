"""What gateways see of servers that run elsewhere is the pair's readiness: a real gateway, operator and API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from slipstream_core.errors import UpstreamUnavailable
from slipstream_core.settings import ClusterSettings, GatewaySettings
from slipstream_gateway.sources.cluster.server_report import MOST_NAMED, MOST_UNREACHABLE_BYTES, Reachability

from tests.gateway.cluster.compared import SPEC, list_server
from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.support.polling import eventually
from tests.support.ports import lasting_ports


def test_pair_without_traffic_is_unready_while_its_server_is_gone(
    space: Any, serve: Any, openai_server: Any, tmp_path: Path
) -> None:
    server = openai_server(*lasting_ports(1))
    arm = {"protocol": "openai", "endpoints": [server.url], "model": "up"}
    space.pair("acme", engine={"kind": "external", "arms": {"plain": arm, "speculative": arm}})
    grant(space.server, space.name)
    cluster = Cluster(space.client, space.name)
    settings = ClusterSettings(kubeconfig=space.kubeconfig(), namespaces=(space.name,), report_namespace=space.name)
    serve(GatewaySettings(cluster=settings))

    def is_ready(status: str, reason: str) -> str | None:
        found = cluster.condition("modelpairs", "acme", "Ready")
        return found[2] if found is not None and found[:2] == (status, reason) else None

    with OperatorProcess(space.server, space.name, tmp_path) as operator:
        operator.wait_ready()
        eventually(lambda: is_ready("True", "External"))
        server.stop()
        said = eventually(lambda: is_ready("False", "EndpointsUnreachable"))
        assert server.url in said
        openai_server(server.port)
        eventually(lambda: is_ready("True", "External"))


def test_pair_of_the_operator_is_unready_while_its_server_answers_no_gateway(
    space: Any, serve: Any, openai_server: Any, tmp_path: Path
) -> None:
    """The kubelet still sees it ready, as a Triton whose engine hangs."""
    server = openai_server(*lasting_ports(1))
    space.create("ModelPair", "acme", SPEC)
    list_server(space, "slipstream-acme", server.port)
    grant(space.server, space.name)
    cluster = Cluster(space.client, space.name)
    settings = ClusterSettings(kubeconfig=space.kubeconfig(), namespaces=(space.name,), report_namespace=space.name)
    serve(GatewaySettings(cluster=settings))
    with OperatorProcess(space.server, space.name, tmp_path) as operator:
        operator.wait_ready()
        deployment = eventually(lambda: cluster.get("deployments", "slipstream-acme"))
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
        status = {"observedGeneration": deployment["metadata"]["generation"], **counts}
        space.client.patch_status(cluster.path("deployments", "slipstream-acme"), status)
        cluster.wait_condition("modelpairs", "acme", "Ready", "True", "MinimumReplicasReady")
        server.stop()
        said = cluster.wait_condition("modelpairs", "acme", "Ready", "False", "EndpointsUnreachable")
        assert "1 of 1 servers are ready; 1 of 1 gateways cannot reach up to 1 of 1 servers" in said
        openai_server(server.port)
        cluster.wait_condition("modelpairs", "acme", "Ready", "True", "MinimumReplicasReady")


class _Gone:
    """A server that never answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.upstream = self

    async def probe(self) -> None:
        raise UpstreamUnavailable("The upstream is unreachable.")


async def test_many_pairs_that_are_lost_fit_into_the_report() -> None:
    spec = SimpleNamespace(engine=None)
    routes = {}
    for number in range(500):
        route = SimpleNamespace(key=f"team/pair-{number}", pair=SimpleNamespace(spec=spec))
        plain = SimpleNamespace(replicas=[_Gone(f"http://{number}.{server}.example") for server in range(10)])
        routes[str(number)] = SimpleNamespace(route=route, plain=plain, speculative=None)
    snapshot: Any = SimpleNamespace(routes=routes)
    changed = asyncio.Event()
    reachability = Reachability(lambda: snapshot, every_s=60.0, changed=changed.set)
    task = asyncio.create_task(reachability.run())
    async with asyncio.timeout(30):
        await changed.wait()
    task.cancel()
    found = reachability.unreachable
    assert found is not None
    assert 10 < len(found) < 500
    assert len(msgspec.json.encode(found)) < 1.2 * MOST_UNREACHABLE_BYTES
    assert {(len(one.servers), one.unreachable, one.total) for one in found.values()} == {(MOST_NAMED, 10, 10)}
