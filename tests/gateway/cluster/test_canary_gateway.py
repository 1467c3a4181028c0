"""Requests that go to a new revision of a pair: its answers, its failures, and who answers then. The API server, the
gateway and Redis are real, the two servers are scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.naming import canary_name
from slipstream_core.manifest.resources import parse_resource
from slipstream_core.manifest.revision import revision_of
from slipstream_core.redis.redis_store import RedisStore
from slipstream_core.settings import ClusterSettings, Deadlines, GatewaySettings

from tests.support.polling import eventually, soon
from tests.support.redis_server import RedisServer

SPEC: dict[str, Any] = {
    "model": "acme",
    "target": {"source": "acme/target", "revision": "1"},
    "draft": {"kind": "ngram"},
    "engine": {"kind": "vllm"},
    "serving": {"update": {"canary": {"share": 0.5}}},
}


class Compared(NamedTuple):
    """A gateway that sends every request to the new one of two servers, and the Redis with its outcomes."""

    gateway: Any
    serving: Any
    new: Any
    revision: str
    key: str
    redis: RedisServer

    def ask(self, content: str, **more: Any) -> httpx.Response:
        body = {"model": "acme", "messages": [{"role": "user", "content": content}], "temperature": 0, **more}
        return httpx.post(f"{self.gateway.url}/v1/chat/completions", json=body, timeout=60)

    async def outcomes(self, count: int) -> list[Any]:
        """The first `count` outcomes that the gateway has shared."""
        seen: list[Any] = []
        store = RedisStore(self.redis.url, pairs=lambda: (self.key,), interval_s=0.05)
        reading = asyncio.create_task(store.run(seen.append))
        try:
            await soon(lambda: len(seen) >= count)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await store.aclose()
        return seen


@pytest.fixture
def compared(space: Any, openai_server: Any, serve: Any, tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Any:
    redis = RedisServer(tmp_path, free_ports(1)[0])
    created = space.create("ModelPair", "acme", SPEC)
    new_spec = {**SPEC, "target": {"source": "acme/target", "revision": "2"}}
    pair = parse_resource({**created, "spec": new_spec}).item
    assert isinstance(pair, ModelPair)
    revision = revision_of(pair)
    servers = {"slipstream-acme": openai_server(), canary_name("acme", revision): openai_server()}
    for service, server in servers.items():
        list_server(space, service, int(server.url.rpartition(":")[2]))
    space.client.patch(space.path("ModelPair", "acme"), {"spec": new_spec})
    status = {
        "lastGood": {"generation": 1, "spec": json.dumps(SPEC)},
        "canary": {"revision": revision, "phase": "Comparing", "share": 1.0},
    }
    space.client.patch_status(space.path("ModelPair", "acme"), status)
    cluster = ClusterSettings(kubeconfig=space.kubeconfig(), namespaces=(space.name,), report_namespace=space.name)
    gateway = serve(GatewaySettings(cluster=cluster, deadlines=Deadlines(connect_s=15.0), redis_url=redis.url))
    serving, new = servers.values()
    found = Compared(gateway, serving, new, revision, f"{space.name}/acme", redis)
    eventually(lambda: found.ask("tokens=2").headers.get("x-slipstream-revision"), "the new revision gets requests")
    yield found
    redis.stop()


def list_server(space: Any, service: str, port: int) -> None:
    labels = {"kubernetes.io/service-name": service, "app.kubernetes.io/part-of": "slipstream"}
    space.client.create(
        f"/apis/discovery.k8s.io/v1beta1/namespaces/{space.name}/endpointslices",
        {
            "metadata": {"name": service, "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port}],
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        },
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_its_answers_are_marked_and_counted_for_it(compared: Compared, stream: bool) -> None:
    reply = compared.ask("tokens=3", stream=stream)
    assert reply.status_code == 200
    assert reply.headers["x-slipstream-revision"] == compared.revision
    seen = await compared.outcomes(2)
    assert {(one.revision, one.canary, one.status) for one in seen} == {(compared.revision, True, "ok")}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_what_it_refuses_or_fails_is_answered_by_the_serving_revision(
    compared: Compared, status: int, stream: bool
) -> None:
    compared.new.status = status
    reply = compared.ask("tokens=3", stream=stream)
    assert reply.status_code == 200, reply.text
    assert "x-slipstream-revision" not in reply.headers
    assert compared.serving.requests
    failed = [one for one in await compared.outcomes(2) if one.status != "ok"]
    assert [(one.revision, one.canary) for one in failed] == [(compared.revision, True)]


def test_what_both_refuse_is_the_clients_error(compared: Compared) -> None:
    compared.new.status = compared.serving.status = 400
    assert compared.ask("tokens=3").status_code == 400


def test_after_the_comparison_it_gets_no_requests(compared: Compared, space: Any) -> None:
    space.client.patch_status(space.path("ModelPair", "acme"), {"canary": {"phase": "RolledBack"}})
    eventually(lambda: "x-slipstream-revision" not in compared.ask("tokens=2").headers, "the comparison is over")
    count = len(compared.new.requests)
    compared.ask("tokens=2")
    assert len(compared.new.requests) == count
