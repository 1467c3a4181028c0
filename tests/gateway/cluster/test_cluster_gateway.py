"""A whole gateway on a real API server: requests, a kill between them, and starts without the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from slipstream_core.settings import ClusterSettings, Deadlines, GatewaySettings
from slipstream_core.types import Reason
from slipstream_gateway.sources.cluster.source import FIRST_LIST_WITH_KEPT_S

from tests.gateway.cluster.compared import following
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import eventually, soon
from tests.support.redis_server import RedisServer


def _settings(space: Any, **options: Any) -> GatewaySettings:
    options = {"kubeconfig": space.kubeconfig(), "namespaces": (space.name,), **options}
    cluster = ClusterSettings(report_namespace=space.name, **options)
    return GatewaySettings(cluster=cluster, deadlines=Deadlines(connect_s=15.0))


def _nowhere(tmp_path: Path) -> Path:
    """A kubeconfig for a server that is not there."""
    path = tmp_path / "nowhere.yaml"
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path


def _ready(gateway: Any) -> dict[str, Any]:
    response = httpx.get(f"{gateway.url}/health/ready")
    assert response.status_code == 200
    return response.json()


def _arm(*urls: str) -> dict[str, Any]:
    return {"protocol": "openai", "endpoints": list(urls), "model": "up"}


@pytest.fixture
def engine(openai_server: Any) -> dict[str, Any]:
    return {"kind": "external", "arms": {"plain": _arm(openai_server().url), "speculative": _arm(openai_server().url)}}


def test_a_merge_patch_of_the_kill_switch_makes_the_next_decisions_plain(space: Any, serve: Any, engine: Any) -> None:
    space.pair("acme", engine=engine)
    space.policy("acme", allowClientMode=True, holdBackShare=0)
    gateway = serve(_settings(space))

    def decision() -> tuple[str, str]:
        headers = {"x-slipstream-mode": "speculative"}
        reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=2"), headers=headers)
        assert reply.status_code == 200, reply.text
        return reply.headers["x-slipstream-arm"], reply.headers["x-slipstream-reason"]

    assert decision() == ("speculative", "client_asked")
    space.patch("SpeculationPolicy", "acme", killSwitch=True)
    eventually(lambda: decision() == ("plain", "kill_switch"), "killed")
    space.patch("SpeculationPolicy", "acme", killSwitch=None)
    eventually(lambda: decision() == ("speculative", "client_asked"), "revived")


def test_a_pair_without_servers_is_answered_with_503_and_others_are_served(space: Any, serve: Any, engine: Any) -> None:
    space.triton_pair("cold")
    space.pair("acme", engine=engine)
    gateway = serve(_settings(space))

    reply = httpx.post(f"{gateway.url}/v1/chat/completions", json={**chat("hello"), "model": "cold"})
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert "cold" in reply.json()["error"]["message"]
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=2")).status_code == 200
    ready = _ready(gateway)
    assert ready["configuration"] == "cluster"
    assert ready["models"] == {"cold": "no server is ready"}


def test_a_start_with_nothing_is_ready_and_says_so(serve: Any, tmp_path: Path) -> None:
    cluster = ClusterSettings(kubeconfig=_nowhere(tmp_path), snapshot=tmp_path / "none.json")
    gateway = serve(GatewaySettings(cluster=cluster))

    assert _ready(gateway)["configuration"] == "none"
    reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("hello"))
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert "No configuration" in reply.json()["error"]["message"]
    assert httpx.get(f"{gateway.url}/v1/models").json()["data"] == []
    assert gateway.metric("slipstream_config_connected") == 0


def test_a_start_with_a_fallback_file_serves_it_plainly(
    serve: Any, openai_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A start that waited for the cluster as one without anything kept does would be given up by `serve`.
    monkeypatch.setattr("slipstream_gateway.sources.cluster.source.FIRST_LIST_S", 600.0)
    assert FIRST_LIST_WITH_KEPT_S < 4.0, "a start does not wait long for the cluster"
    fallback = tmp_path / "fallback.yaml"
    fallback.write_text(manifest_text([openai_server().url], [openai_server().url], policy=", holdBackShare: 0"))
    gateway = serve(GatewaySettings(cluster=ClusterSettings(kubeconfig=_nowhere(tmp_path), fallback=fallback)))

    assert _ready(gateway)["configuration"] == "fallback"
    headers = {"x-slipstream-mode": "speculative"}
    reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=2"), headers=headers)
    assert (reply.status_code, reply.headers["x-slipstream-reason"]) == (200, "kill_switch")
    unknown = httpx.post(f"{gateway.url}/v1/chat/completions", json={**chat("hello"), "model": "another"})
    assert unknown.status_code == 503


def test_metrics_name_the_configuration_in_use(space: Any, serve: Any) -> None:
    space.pair("acme")
    gateway = serve(_settings(space))

    assert gateway.metric("slipstream_config_connected") == 1
    assert gateway.metric("slipstream_config_age_seconds") < 60
    generation = _ready(gateway)["generation"]
    assert gateway.metric("slipstream_config_generation", source="cluster", generation=generation) == 1


async def test_outcomes_say_whether_their_arm_was_drawn_under_an_alarm(
    space: Any, serve: Any, engine: Any, redis: RedisServer
) -> None:
    """A class that begins at once has one, as nothing is known of its times."""
    space.pair("acme", engine=engine)
    lenient = {"minConfidence": 0, "minOutputTokens": 0, "maxRareTokenShare": 1, "margin": 0}
    space.policy("acme", rollout={"steps": [{"share": 1.0}]}, parityShare=0, **lenient)
    gateway = serve(msgspec.structs.replace(_settings(space), redis_url=redis.url))
    async with following(redis, f"{space.name}/acme") as seen:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
            for _ in range(24):
                reply = await client.post("/v1/chat/completions", json=chat("tokens=50"))
                assert reply.status_code == 200
        await soon(lambda: len(seen) == 24)
    assert {one.reason for one in seen if one.alarmed} >= {Reason.HOLD_BACK}
    assert {one.reason for one in seen if not one.alarmed} <= {Reason.BREAK_EVEN, Reason.EXPLORATION}
