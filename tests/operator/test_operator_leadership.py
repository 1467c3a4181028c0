"""The leader's Lease before a real API server: what others write into it, and who leads then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
from slipstream_core.kube.client import KubeClient as OperatorClient
from slipstream_operator.cluster import leadership
from slipstream_operator.cluster.leadership import Leadership
from slipstream_operator.errors import LeadershipLost
from slipstream_operator.settings import LEASE_NAME

from tests.support.kube import KubeApiServer, KubeClient

Make = Callable[[str], Leadership]


@pytest.fixture
async def leads(kube: KubeApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    monkeypatch.setattr(leadership, "RETRY_S", 0.02)
    async with OperatorClient(kube.kubeconfig("admin"), name="test") as api:
        yield lambda holder: Leadership(
            api, namespace=namespace, name=LEASE_NAME, holder=holder, clock_s=time.monotonic
        )


@pytest.fixture
def client(kube: KubeApiServer) -> KubeClient:
    return kube.client()


def lease(namespace: str, name: str = LEASE_NAME) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}".removesuffix("/")


async def test_leader_whose_lease_others_annotate_all_the_time_goes_on(
    leads: Make, client: KubeClient, namespace: str
) -> None:
    one = leads("one")
    await one.acquire()
    holding = asyncio.create_task(one.hold())

    def annotate() -> None:
        for number in range(150):
            client.patch(lease(namespace), {"metadata": {"annotations": {"n": str(number)}}})

    await asyncio.to_thread(annotate)
    assert not holding.done()
    client.patch(lease(namespace), {"spec": {"holderIdentity": "thief"}})
    with pytest.raises(LeadershipLost, match="another instance has taken over"):
        await asyncio.wait_for(holding, 10)


async def test_lease_without_a_spec_is_free(leads: Make, client: KubeClient, namespace: str) -> None:
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE_NAME}}
    client.create(lease(namespace, ""), body)
    one = leads("one")
    await one.release()  # nobody's: nothing to give back
    await asyncio.wait_for(one.acquire(), 10)
    assert client.get(lease(namespace))["spec"]["holderIdentity"] == "one"
    await one.release()
    assert not client.get(lease(namespace))["spec"].get("holderIdentity")
