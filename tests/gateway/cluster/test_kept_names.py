"""A name stays with the namespace whose pair is gone: real gateways, operators and API server, and restarts of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from slipstream_core.settings import ClusterSettings, Deadlines, GatewaySettings

from tests.gateway.pair_manifest import chat
from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.support.polling import PATIENCE_S, eventually


def test_pair_of_another_namespace_does_not_get_the_name_while_its_owner_makes_it_anew(
    space: Any, new_space: Callable[[], Any], serve: Any, openai_server: Any, tmp_path: Path
) -> None:
    owner, other = space, new_space(space.server)
    servers = {each.name: openai_server() for each in (owner, other)}
    waiting = Cluster(other.client, other.name)

    def make(where: Any) -> None:
        arm = {"protocol": "openai", "endpoints": [servers[where.name].url], "model": "up"}
        where.pair("acme", engine={"kind": "external", "arms": {"plain": arm, "speculative": arm}})

    def gateway() -> Callable[[], tuple[int, int, int]]:
        """The status of an answer, and how many requests each server got by then."""
        settings = ClusterSettings(
            kubeconfig=owner.kubeconfig(), namespaces=(owner.name, other.name), report_namespace=owner.name
        )
        url = serve(GatewaySettings(cluster=settings, deadlines=Deadlines(connect_s=15.0))).url

        def ask() -> tuple[int, int, int]:
            before = [len(server.requests) for server in servers.values()]
            status = httpx.post(f"{url}/v1/chat/completions", json=chat("tokens=2"), timeout=PATIENCE_S).status_code
            mine, others = (len(server.requests) - was for server, was in zip(servers.values(), before, strict=True))
            return status, mine, others

        return ask

    def kept_until() -> str | None:
        status = other.client.get(other.path("ModelPair", "acme")).get("status") or {}
        holder = status.get("nameHolder") or {}
        return holder.get("until") if holder.get("namespace") == owner.name else None

    def said() -> str:
        found = waiting.condition("modelpairs", "acme", "Ready")
        return found[2] if found is not None and found[:2] == ("False", "ModelNameTaken") else ""

    for each in (owner, other):
        grant(each.server, each.name)
    make(owner)
    ask = gateway()
    watching = ("--namespace", other.name)
    with OperatorProcess(owner.server, owner.name, tmp_path, *watching) as operator:
        operator.wait_ready()
        eventually(lambda: ask() == (200, 1, 0))
        make(other)
        eventually(lambda: "already serves" in said())
        owner.client.delete(owner.path("ModelPair", "acme"))
        until = eventually(kept_until)
        eventually(lambda: ask() == (404, 0, 0))
    restarted = gateway()
    with OperatorProcess(owner.server, owner.name, tmp_path, *watching) as operator:
        operator.wait_ready()
        wanted = f"reserved for namespace {owner.name} until {until}"
        eventually(lambda: wanted in said())
        eventually(lambda: [asked() for asked in (ask, restarted)] == [(404, 0, 0)] * 2)
        make(owner)
        eventually(lambda: [asked() for asked in (ask, restarted)] == [(200, 1, 0)] * 2)
        eventually(lambda: "already serves" in said())
    assert servers[other.name].requests == []
