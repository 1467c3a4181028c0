"""Rollback for cost with an operator, a gateway, Redis and an API server that are real, and scripted servers.

The servers take the same time for each answer, so that the arms differ in nothing but their cost. One request of ten is
the control.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from tests.e2e.real_cluster import Gateway
from tests.gateway.lossless.scripted_engine import ScriptedEngine
from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.support.kube import KubeApiServer
from tests.support.manifests import JSON
from tests.support.polling import eventually
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.timeout(300)

LIMIT_S = 60.0
ANSWER_S = 0.02
PLAIN_ENGINE_S = 0.01
ENOUGH_CONTROL = 40
SUMMARY = "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. " * 4
POLICY: JSON = {
    "decision": "rules",
    "margin": 0.25,  # noise of a busy machine's times is no loss
    "minOutputTokens": 0,
    "maxRareTokenShare": 1,
    "minConfidence": 0,
    "holdBackShare": 0.1,
    "parityShare": 0,
    "thresholds": {"costIncrease": 0.05, "errorRate": 1},
    "analysis": {"minSamples": 20},
    "rollout": {"steps": [{"share": 1, "soakSeconds": 0}]},
    "rollback": {"coolDownSeconds": 3600, "maxRetries": 0},
}


class PricedServer(ScriptedEngine):
    """Its speculative answers take `dearer` times the engine's time of plain ones."""

    def __init__(self, dearer: float) -> None:
        self._dearer, self._luck = dearer, random.Random(1)
        super().__init__()

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        length = body.get("vllm_xargs", {}).get("slipstream_draft_length", 0)
        await asyncio.sleep(ANSWER_S)
        engine_s = PLAIN_ENGINE_S * self._luck.uniform(0.8, 1.2) * (self._dearer if length else 1.0)
        counts = {"num_draft_tokens": 8 * bool(length), "num_accepted_draft_tokens": 0, "num_spec_steps": 8}
        return web.json_response(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "text"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 90, "completion_tokens": 200, "total_tokens": 290},
                "metrics": {"speculative_decoding": {**counts, "engine_seconds": engine_s}},
            }
        )


@pytest.fixture
def priced_server(exit_stack: ExitStack) -> Callable[[float], PricedServer]:
    """Starts servers; all are stopped after the test."""
    return lambda dearer: exit_stack.enter_context(PricedServer(dearer))


@pytest.fixture
def gateway(
    kube: KubeApiServer, namespace: str, redis: RedisServer, tmp_path: Path, exit_stack: ExitStack
) -> Callable[[], Gateway]:
    """Starts the gateway, once there are objects for it."""

    def start() -> Gateway:
        options = ("--conformance", "off")
        made = Gateway("gateway", kube, namespace, redis.url, tmp_path, lasting_ports(1)[0], *options)
        exit_stack.callback(made.child.stop, timeout_s=15)
        return made

    return start


def one_pool(server: Callable[[float], PricedServer], dearer: float) -> JSON:
    """A pair with one server for both arms, on which an answer takes more of the engine's time."""
    engine = {"kind": "vllm", "endpoints": [server(dearer).url]}
    target, draft = {"source": "/models/target"}, {"kind": "ngram"}
    return {"engine": engine, "target": target, "draft": draft, "pricePerGpuHour": 2.5}


def two_pools(server: Callable[[float], PricedServer], dearer: float) -> JSON:
    """A pair with a server for each arm, of which the speculative one has a higher price. Each answer is nearly alone
    at the control's server, and has company at the other one."""

    def arm(price: float) -> JSON:
        return {"protocol": "openai", "endpoints": [server(1.0).url], "model": "acme", "pricePerGpuHour": price}

    return {"engine": {"kind": "external", "arms": {"plain": arm(2.5), "speculative": arm(2.5 * dearer)}}}


@pytest.mark.parametrize("pools", [one_pool, pytest.param(two_pools, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dearer", [1.48, 1.0])
def test_class_is_rolled_back_for_its_cost_where_that_is_higher_and_only_there(
    kube: KubeApiServer,
    crds: None,
    namespace: str,
    tmp_path: Path,
    redis: RedisServer,
    priced_server: Callable[[float], PricedServer],
    gateway: Callable[[], Gateway],
    pools: Callable[..., JSON],
    dearer: float,
) -> None:
    cluster = grant(kube, namespace)
    cluster.declare("ModelPair", "acme", {"model": "acme", "maxDraftTokens": 5, **pools(priced_server, dearer)})
    cluster.policy("acme", **POLICY)
    with OperatorProcess(kube, namespace, tmp_path, "--redis", redis.url):
        url = gateway().url
        wait_until_served(url)
        status = serve(url, cluster, until=lambda found: found.get("phase") == "RolledBack" or enough(found))
    if dearer == 1.0:
        assert status["phase"] == "Progressing"
        assert min(status[arm]["cost"] for arm in ("speculative", "control")) > 0.0
        return
    decision = status["lastDecision"]
    assert (status["phase"], decision["metric"], decision["threshold"]) == ("RolledBack", "costIncrease", 0.05)
    if pools is one_pool:  # the other costs are made of times, which are a matter of the machine
        assert decision["observed"] == pytest.approx(0.48, abs=0.2)


def enough(found: JSON) -> bool:
    return bool(found.get("control", {}).get("samples", 0) >= ENOUGH_CONTROL)


def wait_until_served(url: str) -> None:
    """Until the pair is ready, so that a request would speculate."""

    def decision() -> Any:
        return httpx.post(f"{url}/v1/route", json=body(), timeout=LIMIT_S).json()

    eventually(
        lambda: decision().get("arm") == "speculative", "speculation", seen=decision, ignoring=httpx.TransportError
    )


def body() -> JSON:
    return {"model": "acme", "messages": [{"role": "user", "content": SUMMARY}], "temperature": 0, "max_tokens": 400}


def serve(url: str, cluster: Cluster, *, until: Callable[[JSON], bool]) -> JSON:
    """The status of the class once it is `until`; requests run until then, four at a time."""
    deadline, found = time.monotonic() + LIMIT_S, {}
    while not until(found):
        assert time.monotonic() < deadline, found
        asyncio.run(ask(url, 120))
        status = cluster.client.get(cluster.path("speculationpolicies", "acme")).get("status") or {}
        found = next(iter(status.get("classes", ())), {})
    return found


async def ask(url: str, count: int) -> None:
    """So many requests."""
    turns = asyncio.Semaphore(4)
    async with httpx.AsyncClient(timeout=LIMIT_S) as client:

        async def one() -> None:
            async with turns:
                answer = await client.post(f"{url}/v1/chat/completions", json=body())
                assert answer.status_code == 200, answer.text

        await asyncio.gather(*(one() for _ in range(count)))
