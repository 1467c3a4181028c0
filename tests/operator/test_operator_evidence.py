"""The operator with real Redis: outcomes that gateways share promote a class, and take it back, across restarts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from pathlib import Path

import pytest
from slipstream_core.observation import Observation
from slipstream_core.redis.redis_store import RedisStore
from slipstream_core.types import Arm

from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.operator.policy_world import CODE, LONG, observation
from tests.support.kube import KubeApiServer
from tests.support.kube_client import JSON
from tests.support.polling import eventually, soon
from tests.support.redis_server import RedisServer

SPEC: JSON = {
    "analysis": {"minSamples": 50},
    "rollout": {"steps": [{"share": 0.1, "soakSeconds": 0}, {"share": 1.0, "soakSeconds": 0}]},
    "thresholds": {"acceptanceFloor": 0.65},
}


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None, namespace: str) -> Cluster:
    made = grant(kube, namespace)
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
        await soon(lambda: store.status().stored == len(outcomes), "stored outcomes", seen=store.status)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await store.aclose()

    asyncio.run(send())


def outcomes(
    cluster: Cluster, name: str, count: int, *, control_s: float = 1.0, **speculative: float
) -> list[Observation]:
    """`count` answers of each arm, the speculative ones in half a second, the control's in `control_s`."""
    luck, pair, now_s = random.Random(1), f"{cluster.namespace}/acme", time.time()
    made = []
    for _ in range(count):
        fast = {"e2e_s": 0.5 * luck.uniform(0.8, 1.2), "acceptance": 0.75, **speculative}
        made.append(observation(name, Arm.SPECULATIVE, time_s=now_s, pair=pair, **fast))
        made.append(observation(name, Arm.CONTROL, time_s=now_s, pair=pair, e2e_s=control_s * luck.uniform(0.8, 1.2)))
    return made


def class_of(cluster: Cluster, name: str) -> JSON | None:
    status = cluster.client.get(cluster.path("speculationpolicies", "acme")).get("status") or {}
    return next((entry for entry in status.get("classes", ()) if entry["name"] == name), None)


def phase(cluster: Cluster, name: str) -> str:
    return (class_of(cluster, name) or {}).get("phase", "")


def play(cluster: Cluster, **counts: int) -> None:
    """As the Deployment's controller."""
    deployment = eventually(lambda: cluster.get("deployments", "slipstream-acme"))
    all_counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1) | counts
    status = {"observedGeneration": deployment["metadata"]["generation"], **all_counts}
    cluster.client.patch_status(cluster.path("deployments", "slipstream-acme"), status)


def play_ready(cluster: Cluster) -> None:
    play(cluster)
    cluster.wait_condition("modelpairs", "acme", "Ready", "True")
    cluster.wait_condition("speculationpolicies", "acme", "Ready", "True")


def serve_until(wanted: str, cluster: Cluster, redis: RedisServer, name: str, **answers: float) -> None:
    """Serve until the class has the phase `wanted`."""

    def has_phase() -> bool:
        share(redis, outcomes(cluster, name, 60, **answers))
        return phase(cluster, name) == wanted

    eventually(has_phase, f"phase {wanted}", seen=lambda: class_of(cluster, name))


def test_a_draft_that_has_become_worse_is_an_event_of_the_policy(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    cluster.patch("speculationpolicies", "acme", {"spec": {"capture": {"share": 1}}})
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--redis", redis.url):
        play_ready(cluster)
        share(redis, outcomes(cluster, CODE, 420, steps=60))
        share(redis, outcomes(cluster, CODE, 420, steps=100, acceptance=0.5))
        [drift] = eventually(lambda: [event for event in cluster.events("acme") if event["reason"] == "DraftDrift"])
    assert drift["type"] == "Warning"
    assert drift["message"].startswith(f"{CODE}: 2.00 tokens per step in the 200 speculative answers from ")
    assert ", 3.33 before;" in drift["message"]


def test_class_is_promoted_and_taken_back_on_evidence_across_kills(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    options = ("--redis", redis.url)
    with OperatorProcess(kube, cluster.namespace, tmp_path, *options) as operator:
        play_ready(cluster)
        share(redis, outcomes(cluster, CODE, 20) + outcomes(cluster, LONG, 20))
        eventually(lambda: phase(cluster, CODE) == phase(cluster, LONG) == "Progressing")
        serve_until("Promoted", cluster, redis, LONG)
        operator.signal(signal.SIGKILL)
    for command in ("describe", "get"):
        shown = kube.kubectl(command, "speculationpolicy/acme", namespace=cluster.namespace)
        assert max(map(len, shown.splitlines())) < 600, "people do not see the evidence"
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


def test_evidence_outlives_the_store_and_goes_with_its_policy(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    options = ("--redis", redis.url)
    with OperatorProcess(kube, cluster.namespace, tmp_path, *options) as operator:
        play_ready(cluster)
        share(redis, outcomes(cluster, CODE, 20))
        eventually(lambda: phase(cluster, CODE) == "Progressing")
        serve_until("Promoted", cluster, redis, CODE)
        operator.signal(signal.SIGKILL)
    policy = cluster.client.get(cluster.path("speculationpolicies", "acme"))
    stored = cluster.client.get(cluster.path("configmaps", f"slipstream-evidence-{policy['metadata']['uid']}"))
    assert [owner["uid"] for owner in stored["metadata"]["ownerReferences"]] == [policy["metadata"]["uid"]]
    assert len(stored["data"]["checkpoint"]) > 2 * len(policy["status"]["checkpoint"])
    samples = class_of(cluster, CODE)["speculative"]["samples"]
    redis.client().flushall()
    with OperatorProcess(kube, cluster.namespace, tmp_path, *options):
        share(redis, outcomes(cluster, LONG, 20))
        eventually(lambda: phase(cluster, LONG) == "Progressing")
        assert phase(cluster, CODE) == "Promoted"
        assert class_of(cluster, CODE)["speculative"]["samples"] >= samples > 0


def test_class_is_taken_back_though_its_pair_is_refused_or_its_policy_is_leaving(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--redis", redis.url):
        play_ready(cluster)
        share(redis, outcomes(cluster, CODE, 20) + outcomes(cluster, LONG, 20))
        eventually(lambda: phase(cluster, CODE) == phase(cluster, LONG) == "Progressing")
        cluster.patch("modelpairs", "acme", {"spec": {"draft": {"source": "embedded:target"}}})
        cluster.wait_condition("modelpairs", "acme", "Accepted", "False")  # gateways go by the last good spec
        serve_until("RolledBack", cluster, redis, CODE, acceptance=0.1)

        cluster.patch("modelpairs", "acme", {"spec": {"draft": {"source": "embedded:draft"}}})
        cluster.wait_condition("modelpairs", "acme", "Accepted", "True")
        cluster.wait_condition("speculationpolicies", "acme", "Ready", "True")
        assert (phase(cluster, CODE), phase(cluster, LONG)) == ("RolledBack", "Progressing")
        cluster.patch("speculationpolicies", "acme", {"metadata": {"finalizers": ["tests.slipstream.dev/waits"]}})
        cluster.client.delete(cluster.path("speculationpolicies", "acme"))
        serve_until("RolledBack", cluster, redis, LONG, acceptance=0.1)
        cluster.patch("speculationpolicies", "acme", {"metadata": {"finalizers": None}})
        eventually(lambda: cluster.get("speculationpolicies", "acme") is None)


def test_servers_of_the_old_spec_are_no_evidence_for_the_new_one(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--redis", redis.url):
        play_ready(cluster)
        share(redis, outcomes(cluster, CODE, 20))
        eventually(lambda: phase(cluster, CODE) == "Progressing")
        before = cluster.children("acme")["deployments"]["metadata"]["generation"]
        cluster.patch("modelpairs", "acme", {"spec": {"serving": {"image": "slipstream-triton:next"}}})
        eventually(lambda: cluster.children("acme")["deployments"]["metadata"]["generation"] > before)
        play(cluster, replicas=2)  # one of the two is an old one
        eventually(lambda: "servers are being brought" in _progressing(cluster))
        for acceptance in (0.75, 0.1):
            share(redis, outcomes(cluster, CODE, 200, acceptance=acceptance))
            time.sleep(3)
            assert (phase(cluster, CODE), class_of(cluster, CODE)["step"]) == ("Progressing", 0)
        play(cluster)
        eventually(lambda: "servers are being brought" not in _progressing(cluster))
        serve_until("Promoted", cluster, redis, CODE)


def _progressing(cluster: Cluster) -> str:
    return (cluster.condition("speculationpolicies", "acme", "Progressing") or ("", "", ""))[2]


def test_of_two_operators_without_an_election_none_lifts_what_the_other_has_taken_back(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    options = ("--redis", redis.url)
    with (
        OperatorProcess(kube, cluster.namespace, tmp_path, *options) as halted,
        OperatorProcess(kube, cluster.namespace, tmp_path, *options) as other,
    ):
        play_ready(cluster)
        serve_until("Promoted", cluster, redis, CODE)
        halted.signal(signal.SIGSTOP)
        share(redis, outcomes(cluster, CODE, 250, acceptance=0.1))
        eventually(lambda: phase(cluster, CODE) == "RolledBack")
        taken_back = class_of(cluster, CODE)
        assert taken_back is not None
        redis.kill()  # the halted one cannot see why
        halted.signal(signal.SIGCONT)
        before = halted.writes() + other.writes()
        for _ in range(30):
            time.sleep(0.1)
            assert (class_of(cluster, CODE) or {})["since"] == taken_back["since"]
        assert halted.writes() + other.writes() - before < 10


def test_slow_servers_take_nothing_back_and_slow_speculation_does(
    kube: KubeApiServer, cluster: Cluster, redis: RedisServer, tmp_path: Path
) -> None:
    """A busy host: speculative answers take 1.12 s, above the limit of 1 s, and the control's 2.21 s. Beside it a class
    that keeps to every threshold, and whose speculative answers take 40 % longer than the control's."""
    cluster.patch("speculationpolicies", "acme", {"spec": {"thresholds": {"p95Seconds": 1.0}}})
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--redis", redis.url):
        play_ready(cluster)
        serve_until("Promoted", cluster, redis, CODE)
        serve_until("Promoted", cluster, redis, LONG)
        serve_until("RolledBack", cluster, redis, LONG, control_s=0.5, e2e_s=0.7)
        cluster.wait_condition("speculationpolicies", "acme", "RolledBack", "True")
        assert cluster.condition("speculationpolicies", "acme", "RolledBack")[1] == "SlowerThanControl"
        assert class_of(cluster, LONG)["lastDecision"]["observed"] == pytest.approx(0.4, abs=0.1)

        for _ in range(5):
            share(redis, outcomes(cluster, CODE, 60, control_s=2.21, e2e_s=1.12))
        cluster.wait_condition("speculationpolicies", "acme", "ServersSlow", "True")
        assert phase(cluster, CODE) == "Promoted"
        told = eventually(lambda: [event for event in cluster.events("acme") if event["reason"] == "LimitsBroken"])
        assert CODE in told[0]["message"]
        serve_until("RolledBack", cluster, redis, CODE, control_s=0.5, e2e_s=1.12)
