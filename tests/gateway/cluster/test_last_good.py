"""An invalid new spec takes nothing away: an operator keeps the last good one, and a gateway that starts finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from slipstream_core.settings import ClusterSettings, Deadlines, GatewaySettings

from tests.gateway.pair_manifest import chat
from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.support.polling import eventually


def _kept_generations(space: Any) -> list[int | None]:
    items = [space.client.get(space.path(kind, "acme")) for kind in ("ModelPair", "SpeculationPolicy")]
    kept = [(item.get("status") or {}).get("lastGood") or {} for item in items]
    return [good.get("generation") for good in kept]


def test_a_gateway_that_starts_speculates_by_the_last_good_pair_and_policy(
    space: Any, serve: Any, openai_server: Any, tmp_path: Path
) -> None:
    arms = {
        arm: {"protocol": "openai", "endpoints": [openai_server().url], "model": "up"}
        for arm in ("plain", "speculative")
    }
    space.pair("acme", engine={"kind": "external", "arms": arms})
    space.policy("acme", allowClientMode=True, holdBackShare=0)
    grant(space.server, space.name)
    cluster = Cluster(space.client, space.name)
    with OperatorProcess(space.server, space.name, tmp_path) as operator:
        operator.wait_ready()
        eventually(lambda: _kept_generations(space) == [1, 1])
    space.patch("ModelPair", "acme", maxDraftTokens=-3)
    space.patch("SpeculationPolicy", "acme", margin="much")
    with OperatorProcess(space.server, space.name, tmp_path) as operator:  # it never saw the good ones
        operator.wait_ready()
        said = cluster.wait_condition("modelpairs", "acme", "Accepted", "False", "InvalidSpec")
        assert "spec.maxDraftTokens" in said
        assert "generation 1 stays in use" in said
        cluster.wait_condition("modelpairs", "acme", "Ready", "True")
        said = cluster.wait_condition("speculationpolicies", "acme", "Accepted", "False", "InvalidSpec")
        assert "spec.margin" in said
        assert _kept_generations(space) == [1, 1]
    settings = ClusterSettings(kubeconfig=space.kubeconfig(), namespaces=(space.name,), report_namespace=space.name)
    gateway = serve(GatewaySettings(cluster=settings, deadlines=Deadlines(connect_s=15.0)))
    headers = {"x-slipstream-mode": "speculative"}
    reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=2"), headers=headers, timeout=30)
    assert (reply.status_code, reply.headers.get("x-slipstream-reason")) == (200, "client_asked"), reply.text
