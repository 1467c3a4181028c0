"""Two releases that watch one namespace: one of them manages it, the other changes nothing and says who does."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from slipstream_core.kube.client import KubeClient
from slipstream_operator.cluster.ownership import DURATION_S, LEASE_NAME, RENEW_S, Ownership

from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.support.clock import Clock
from tests.support.kube import KubeApiServer
from tests.support.polling import eventually

LABEL = "slipstream.dev/release"


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None, namespace: str) -> Cluster:
    return grant(kube, namespace)


def test_second_release_changes_nothing_and_names_the_first(
    kube: KubeApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    def start(release: str) -> OperatorProcess:
        options = ("--release", release, "--triton-image", f"triton:{release}", "--resync", "1")
        return OperatorProcess(kube, cluster.namespace, tmp_path, *options)

    def refusals() -> list[str]:
        found = [event for event in cluster.events("acme") if event["reason"] == "ManagedByAnotherRelease"]
        return [event["message"] for event in found]

    with start("one") as first:
        first.wait_ready()
        cluster.pair("acme")
        cluster.policy("acme")
        eventually(lambda: len(cluster.children("acme")) == 5)
        cluster.wait_condition("modelpairs", "acme", "Ready", "False", "NoReadyReplicas")
        with start("two") as second:
            second.wait_ready()
            eventually(lambda: len(refusals()) == 2)  # the pair's and the policy's
            name = "slipstream_operator_reconcile_seconds_count"
            looks = second.metric(name)
            eventually(lambda: second.metric(name) >= looks + 6)
            events = second.metric("slipstream_operator_writes_total", resource="events")
            assert second.writes() == events, second.log()
            assert all("release one manages" in message and "release two" in message for message in refusals())
        children = cluster.children("acme")
        assert {child["metadata"]["labels"][LABEL] for child in children.values()} == {"one"}
        assert children["deployments"]["metadata"]["generation"] == 1
        first.signal(signal.SIGKILL)
        first.wait()
    # The same release goes on at once, whatever became of its process.
    with start("one") as again:
        again.wait_ready()
        cluster.client.delete(cluster.path("services", "slipstream-acme"))
        eventually(lambda: cluster.get("services", "slipstream-acme"))


@pytest.fixture
async def api(kube: KubeApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(kube.kubeconfig("admin"), name="slipstream-operator") as api:
        yield api


async def test_namespace_of_a_release_that_is_gone_is_taken_over(api: KubeClient, namespace: str) -> None:
    clock = Clock()
    gone, heir = (Ownership(api, release=name, clock_s=clock) for name in ("gone", "heir"))
    assert await gone.refusal(namespace) is None
    refusal = await heir.refusal(namespace)
    assert refusal is not None
    assert "release gone manages" in refusal.message
    clock.now_s += DURATION_S
    assert await heir.refusal(namespace) is not None  # not longer than its duration
    clock.now_s += RENEW_S
    assert await heir.refusal(namespace) is None
    clock.now_s += RENEW_S
    late = await gone.refusal(namespace)
    assert late is not None
    assert "release heir manages" in late.message


async def test_release_that_renews_keeps_its_namespace(api: KubeClient, namespace: str, cluster: Cluster) -> None:
    clock = Clock()
    owner, rival = (Ownership(api, release=name, clock_s=clock) for name in ("owner", "rival"))
    for _ in range(6):
        assert await owner.refusal(namespace) is None
        assert await rival.refusal(namespace) is not None
        clock.now_s += RENEW_S
    lease = cluster.get("leases", LEASE_NAME)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == "owner"
