"""A gateway in front of the servers of two revisions of a pair. API server, gateway and Redis are real."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx
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
        async with following(self.redis, self.key) as seen:
            await soon(lambda: len(seen) >= count)
        return seen


@contextlib.asynccontextmanager
async def following(redis: RedisServer, key: str, *, every_s: float = 0.05) -> AsyncIterator[list[Any]]:
    """The outcomes of the pair `key` that gateways share, as they arrive."""
    seen: list[Any] = []
    store = RedisStore(redis.url, pairs=lambda: (key,), interval_s=every_s)
    reading = asyncio.create_task(store.run(seen.append))
    try:
        yield seen
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await store.aclose()


def compare(
    space: Any, serve: Callable[[GatewaySettings], Any], redis: RedisServer, *, serving: Any, new: Any, share: float
) -> Compared:
    """A gateway that sends `share` of the requests to the server of the `new` revision; both have a `url`."""
    created = space.create("ModelPair", "acme", SPEC)
    new_spec = {**SPEC, "target": {"source": "acme/target", "revision": "2"}}
    pair = parse_resource({**created, "spec": new_spec}).item
    assert isinstance(pair, ModelPair)
    revision = revision_of(pair)
    for service, server in {"slipstream-acme": serving, canary_name("acme", revision): new}.items():
        list_server(space, service, int(server.url.rpartition(":")[2]))
    space.client.patch(space.path("ModelPair", "acme"), {"spec": new_spec})
    status = {
        "lastGood": {"generation": 1, "spec": json.dumps(SPEC)},
        "canary": {"revision": revision, "phase": "Comparing", "share": share},
    }
    space.client.patch_status(space.path("ModelPair", "acme"), status)
    cluster = ClusterSettings(kubeconfig=space.kubeconfig(), namespaces=(space.name,), report_namespace=space.name)
    gateway = serve(GatewaySettings(cluster=cluster, deadlines=Deadlines(connect_s=15.0), redis_url=redis.url))
    found = Compared(gateway, serving, new, revision, f"{space.name}/acme", redis)
    eventually(lambda: found.ask("tokens=2").headers.get("x-slipstream-revision"), "the new revision gets requests")
    return found


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
