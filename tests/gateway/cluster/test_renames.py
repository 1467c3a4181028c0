"""A rename of a model that clients use is announced and waits: a real gateway, operator, server and API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from slipstream_core.settings import ClusterSettings, Deadlines, GatewaySettings

from tests.gateway.pair_manifest import chat
from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.support.polling import PATIENCE_S, eventually


def _external(space: Any, server: Any, name: str) -> None:
    arm = {"protocol": "openai", "endpoints": [server.url], "model": "up"}
    space.pair(name, engine={"kind": "external", "arms": {"plain": arm, "speculative": arm}})


def _gateway(space: Any, serve: Any) -> Any:
    settings = ClusterSettings(kubeconfig=space.kubeconfig(), namespaces=(space.name,), report_namespace=space.name)
    return serve(GatewaySettings(cluster=settings, deadlines=Deadlines(connect_s=15.0)))


def _status(space: Any, name: str) -> dict[str, Any]:
    return space.client.get(space.path("ModelPair", name)).get("status") or {}


def test_name_that_clients_use_stays_until_an_annotation_lets_it_go_and_running_answers_end(
    space: Any, serve: Any, openai_server: Any, tmp_path: Path
) -> None:
    server = openai_server()
    _external(space, server, "acme")
    _external(space, server, "idle")
    grant(space.server, space.name)
    cluster = Cluster(space.client, space.name)
    gateway = _gateway(space, serve)

    def ask(model: str) -> int:
        body = chat("tokens=2") | {"model": model}
        return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).status_code

    with OperatorProcess(space.server, space.name, tmp_path) as operator:
        operator.wait_ready()
        eventually(lambda: ask("acme") == 200)
        eventually(lambda: _status(space, "acme").get("inUse") is True)
        space.patch("ModelPair", "acme", model="new")
        said = cluster.wait_condition("modelpairs", "acme", "Accepted", "False", "ModelNameInUse")
        assert "clients still request 'acme'" in said
        events = eventually(lambda: [e for e in cluster.events("acme") if e["reason"] == "ModelNameInUse"])
        assert events[0]["type"] == "Warning"
        assert (ask("acme"), ask("new")) == (200, 404)
        assert cluster.condition("modelpairs", "acme", "Ready")[:2] == ("True", "External")

        space.patch("ModelPair", "idle", model="busy")  # nobody has asked for it
        eventually(lambda: ask("busy") == 200)

        server.pace_s = 0.2
        slow = chat("tokens=1000") | {"model": "acme", "stream": True}
        with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=slow, timeout=PATIENCE_S) as running:
            lines = running.iter_lines()
            next(lines)
            allow = {"metadata": {"annotations": {"slipstream.dev/allow-rename": "new"}}}
            space.client.patch(space.path("ModelPair", "acme"), allow)
            eventually(lambda: (ask("new"), ask("acme")) == (200, 404))
            server.pace_s = 0.0
            assert [line for line in lines if line][-1] == "data: [DONE]"
        cluster.wait_condition("modelpairs", "acme", "Accepted", "True", "Accepted")
        [event] = eventually(lambda: [e for e in cluster.events("acme") if e["reason"] == "ModelRenamed"])
        assert "as 'new', no longer as 'acme'" in event["message"]


def test_deletion_of_a_pair_in_use_is_announced_and_running_answers_end(
    space: Any, serve: Any, openai_server: Any, tmp_path: Path
) -> None:
    server = openai_server()
    for name in ("acme", "idle"):
        _external(space, server, name)
    grant(space.server, space.name)
    cluster = Cluster(space.client, space.name)
    gateway = _gateway(space, serve)
    url = f"{gateway.url}/v1/chat/completions"
    with OperatorProcess(space.server, space.name, tmp_path) as operator:
        operator.wait_ready()
        server.pace_s = 0.2
        slow = chat("tokens=1000", stream=True)
        eventually(lambda: httpx.post(url, json=chat("tokens=0"), timeout=PATIENCE_S).status_code == 200)
        with httpx.stream("POST", url, json=slow, timeout=PATIENCE_S) as running:
            lines = running.iter_lines()
            next(lines)
            eventually(lambda: _status(space, "acme").get("inUse") is True)
            eventually(lambda: _status(space, "idle").get("lastGood"))
            for name in ("idle", "acme"):
                space.client.delete(space.path("ModelPair", name))
            [event] = eventually(lambda: [e for e in cluster.events("acme") if e["reason"] == "DeletedInUse"])
            assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "ModelPair")
            assert "while clients requested its model 'acme', last at " in event["message"]
            eventually(lambda: httpx.post(url, json=slow, timeout=PATIENCE_S).status_code == 404)
            server.pace_s = 0.0
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert gateway.metric("slipstream_models_removed_in_use_total") == 1
        assert not [e for e in cluster.events("idle") if e["reason"] == "DeletedInUse"]
