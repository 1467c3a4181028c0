"""A pair scales from one server to four, to none and back while clients use it.

API server, operator, gateways, Triton and Redis are real. The test plays the autoscaler's controller: it writes the
number of the autoscaler's target by the subresource `scale`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.real_cluster import Cluster, Stream, Streams, running_cluster
from tests.e2e.test_cluster import ENGINE, SUMMARY
from tests.support.kube import KubeApiServer
from tests.support.manifests import EMBEDDED, JSON, pair_yaml
from tests.support.polling import eventually
from tests.support.replicas import Replicas
from tests.support.streams import whole_text_of

pytestmark = pytest.mark.timeout(600)

IDLE_S = 60
SERVER_S = 120.0  # four servers start one after the other, on the cores that the traffic uses
SERVING = f"autoscaling: {{minReplicas: 0, maxReplicas: 4, idleSeconds: {IDLE_S}, coldStartSeconds: 120}}"
PAIR = pair_yaml(
    ENGINE,
    *EMBEDDED,
    f"serving: {{gpus: 0, {SERVING}}}",
    name="support",
    model="support",
)


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(kube, namespace, tmp_path, gateways=2) as cluster:
        yield cluster


@pytest.fixture
def servers(cluster: Cluster, tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[Replicas]:
    with Replicas(cluster.kube, cluster.namespace, "slipstream-support", tmp_path, free_ports) as servers:
        yield servers


@pytest.mark.slow  # waits for an idle minute; tests/operator has each part
def test_one_to_four_to_none_to_one_under_traffic(cluster: Cluster, servers: Replicas) -> None:
    cluster.kubectl("apply", "-f", "-", input=PAIR)
    eventually(lambda: servers.ready == 1, "the first server", within_s=SERVER_S)
    eventually(lambda: ready_reason(cluster) == "MinimumReplicasReady", "the pair is ready")
    target = autoscaler(cluster)["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "slipstream-support")

    with Streams(cluster, SUMMARY, clients=4) as streams:
        eventually(lambda: streams.answers, "an answer")
        scale_as_an_autoscaler(cluster, 4)
        eventually(lambda: servers.ready == 4, "four servers", within_s=SERVER_S)
        eventually(lambda: cluster.get("modelpair")["status"]["replicas"]["ready"] == 4, "the status shows them")
        scale_as_an_autoscaler(cluster, 2)
        eventually(lambda: servers.running == 2, "two servers have drained", within_s=SERVER_S)
        count = len(streams.answers)
        eventually(lambda: len(streams.answers) > count + 4, "the other two serve")
        assert number(cluster) == 2  # the operator leaves it to the autoscaler
    assert_whole(streams.answers)

    stopped_s = time.monotonic()
    eventually(lambda: number(cluster) == 0, "no server is wanted", within_s=2 * IDLE_S)
    idle_s = time.monotonic() - stopped_s
    assert idle_s > IDLE_S - 1
    eventually(lambda: servers.running == 0, "no server runs", within_s=SERVER_S)
    eventually(lambda: ready_reason(cluster) == "Idle", "the pair is idle")
    assert autoscalers(cluster) == []

    with ThreadPoolExecutor(8) as clients:
        began_s = time.monotonic()
        held = [clients.submit(ask, cluster, index) for index in range(8)]
        eventually(lambda: number(cluster) == 1, "a server is wanted")
        woken_s = time.monotonic() - began_s
        assert woken_s < 2.0
        texts = {answer.result() for answer in held}
    assert texts == {streams.answers[0].text}
    assert autoscalers(cluster) != []
    print(
        f"idle after {idle_s:.1f} s, woken in {woken_s:.2f} s, first answers after {time.monotonic() - began_s:.1f} s"
    )


def ask(cluster: Cluster, index: int) -> str:
    """The text of an answer, every other one streamed."""
    gateway, stream = cluster.gateways[index % 2], index % 4 < 2
    body = {"model": "support", "messages": [{"role": "user", "content": SUMMARY}], "temperature": 0, "max_tokens": 160}
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json={**body, "stream": stream}, timeout=180)
    assert answer.status_code == 200, answer.text
    if stream:
        return whole_text_of(answer.text)
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def assert_whole(answers: list[Stream]) -> None:
    """All streams have the whole text, which is always the same. `Streams` has checked their status and their end."""
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].text


def scale_as_an_autoscaler(cluster: Cluster, replicas: int) -> None:
    path = f"{deployments(cluster)}/slipstream-support/scale"
    cluster.kube.client().patch(path, {"spec": {"replicas": replicas}})


def number(cluster: Cluster) -> int:
    found: int = cluster.kube.client().get(f"{deployments(cluster)}/slipstream-support")["spec"]["replicas"]
    return found


def ready_reason(cluster: Cluster) -> str:
    conditions = cluster.get("modelpair").get("status", {}).get("conditions", ())
    return next((each["reason"] for each in conditions if each["type"] == "Ready"), "")


def autoscaler(cluster: Cluster) -> JSON:
    [found] = eventually(lambda: autoscalers(cluster), "an autoscaler")
    return found


def autoscalers(cluster: Cluster) -> list[JSON]:
    return cluster.kube.client().items(
        f"/apis/autoscaling/v2beta2/namespaces/{cluster.namespace}/horizontalpodautoscalers"
    )


def deployments(cluster: Cluster) -> str:
    return f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments"
