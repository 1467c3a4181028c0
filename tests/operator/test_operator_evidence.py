"""The operator with real Redis: outcomes that gateways share promote a class, and take it back, across restarts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slipstream_gateway.measurement import Observation
from slipstream_gateway.stores.redis_store import RedisStore
from slipstream_gateway.types import Arm

from tests.kube import KubeApiServer
from tests.kube_client import JSON
from tests.operator.operator_process import Cluster, OperatorProcess, eventually, grant
from tests.operator.policy_world import CODE, LONG, observation
from tests.redis_server import RedisServer

SPEC: JSON = {
    "analysis": {"minSamples": 50},
    "rollout": {"steps": [{"share": 0.1, "soakSeconds": 0}, {"share": 1.0, "soakSeconds": 0}]},
    "thresholds": {"acceptanceFloor": 0.65},
}


@pytest.fixture
def redis(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[RedisServer]:
    (folder := tmp_path / "redis").mkdir()
    server = RedisServer(folder, free_ports(1)[0])
    yield server
    server.kill()


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None, namespace: str) -> Cluster:
    grant(kube, namespace)
    made = Cluster(kube.client(), namespace)
    made.pair("acme")
    made.policy("acme", **SPEC)
    return made


def share(redis: RedisServer, outcomes: list[Observation]) -> None:
    """As a gateway does it."""

    async def send() -> None:
        store = RedisStore(redis.url, pairs=tuple, interval_s=0.02)
        task = asyncio.create_task(store.run(lambda _: None))
        for outcome in outcomes:
            store.append(outcome)
        for _ in range(1000):
            if store.status().stored == len(outcomes):
                break
            await asyncio.sleep(0.02)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await store.aclose()
        assert store.status().stored == len(outcomes)

    asyncio.run(send())


def outcomes(cluster: Cluster, name: str, count: int, **speculative: float) -> list[Observation]:
    """`count` answers of each arm, the speculative ones in half the time."""
    luck, pair, now_s = random.Random(1), f"{cluster.namespace}/acme", time.time()
    made = []
    for _ in range(count):
        fast = {"e2e_s": 0.5 * luck.uniform(0.8, 1.2), "acceptance": 0.75, **speculative}
        made.append(observation(name, Arm.SPECULATIVE, time_s=now_s, pair=pair, **fast))
        made.append(observation(name, Arm.CONTROL, time_s=now_s, pair=pair, e2e_s=luck.uniform(0.8, 1.2)))
    return made


def class_of(cluster: Cluster, name: str) -> JSON | None:
    status = cluster.client.get(cluster.path("speculationpolicies", "acme")).get("status") or {}
    return next((entry for entry in status.get("classes", ()) if entry["name"] == name), None)


def phase(cluster: Cluster, name: str) -> str:
    return (class_of(cluster, name) or {}).get("phase", "")


def play_ready(cluster: Cluster) -> None:
    deployment = eventually(lambda: cluster.get("deployments", "slipstream-acme"))
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
    status = {"observedGeneration": deployment["metadata"]["generation"], **counts}
    cluster.client.patch_status(cluster.path("deployments", "slipstream-acme"), status)
    cluster.wait_condition("modelpairs", "acme", "Ready", "True")
    cluster.wait_condition("speculationpolicies", "acme", "Ready", "True")


def test_class_is_promoted_and_taken_back_on_evidence_across_kills(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    options = ("--redis", redis.url)
    with OperatorProcess(kube, cluster.namespace, tmp_path, *options) as operator:
        play_ready(cluster)
        share(redis, outcomes(cluster, CODE, 20) + outcomes(cluster, LONG, 20))
        eventually(lambda: phase(cluster, CODE) == phase(cluster, LONG) == "Progressing")
        deadline = time.monotonic() + 60
        while phase(cluster, LONG) != "Promoted":
            assert time.monotonic() < deadline, class_of(cluster, LONG)
            share(redis, outcomes(cluster, LONG, 60))
            time.sleep(0.5)
        operator.signal(signal.SIGKILL)
    share(redis, outcomes(cluster, CODE, 250, acceptance=0.3))  # while nobody looks

    with OperatorProcess(kube, cluster.namespace, tmp_path, *options) as operator:
        eventually(lambda: phase(cluster, CODE) == "RolledBack")
        assert phase(cluster, LONG) == "Promoted"
        before = class_of(cluster, CODE)
        assert before is not None
        assert before["share"] == 0
        assert "acceptance" in before["message"].lower()
        assert eventually(lambda: [event for event in cluster.events("acme") if CODE in event["message"]])
        cluster.wait_condition("speculationpolicies", "acme", "RolledBack", "True")
        operator.signal(signal.SIGKILL)

    with OperatorProcess(kube, cluster.namespace, tmp_path, *options) as operator:
        operator.wait_ready()
        share(redis, outcomes(cluster, CODE, 5))
        time.sleep(3)
        after = class_of(cluster, CODE)
        assert after is not None
        latched = ("phase", "share", "since", "retries", "retryAt", "lastDecision")
        assert [after.get(field) for field in latched] == [before.get(field) for field in latched]
        assert phase(cluster, LONG) == "Promoted"


def test_checkpoint_that_was_tampered_with_is_an_event_and_promotes_nothing(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    options = ("--redis", redis.url)
    with OperatorProcess(kube, cluster.namespace, tmp_path, *options):
        play_ready(cluster)
        share(redis, outcomes(cluster, CODE, 20))
        eventually(lambda: phase(cluster, CODE) == "Progressing")
    forged = {"name": CODE, "phase": "Promoted", "share": 1.0}
    path = cluster.path("speculationpolicies", "acme")
    cluster.client.patch_status(path, {"checkpoint": "AAAA", "classes": [forged]})
    with OperatorProcess(kube, cluster.namespace, tmp_path, *options):
        eventually(lambda: [event for event in cluster.events("acme") if event["reason"] == "CheckpointLost"])
        eventually(lambda: phase(cluster, CODE) != "Promoted")
