"""Pods of a LeaderWorkerSet that a real API server refuses; the controllers of the set are played here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slipstream_operator.status.conditions import rfc3339

from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.operator.pair_objects import GROUP_SPEC, JSON
from tests.support.foreign_kinds import leader_worker_sets
from tests.support.kube import KubeApiServer, KubeError, install_definitions
from tests.support.polling import eventually

SET = "slipstream-wide-group"
QUOTA: JSON = {
    "kind": "ResourceQuota",
    "spec": {"hard": {"pods": "0"}},
    "status": {"hard": {"pods": "0"}, "used": {"pods": "0"}},
}
LIMITS: JSON = {"kind": "LimitRange", "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}]}}
REFUSALS: dict[str, tuple[str, JSON | None, JSON]] = {
    "quota": ("exceeded quota", QUOTA, {}),
    "limit range": ("maximum nvidia.com/gpu usage per Container is 1", LIMITS, {}),
    "priority class": ("no PriorityClass with name later was found", None, {"priorityClassName": "later"}),
}


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    """Its operator looks only where something has changed: its first resync is beyond the test."""
    install_definitions(kube, [leader_worker_sets()])
    with OperatorProcess(kube, namespace, tmp_path, "--resync", "3600") as running:
        granted = grant(kube, namespace)
        running.wait_ready()
        yield granted


def refuse(cluster: Cluster, template: JSON) -> None:
    """Try to create the leader, and report it as the StatefulSet's controller does."""
    name = f"{SET}-0"
    with pytest.raises(KubeError) as refusal:
        create(cluster, template, name)
    message = f"create Pod {name} in StatefulSet {SET} failed error: {refusal.value}"
    event = {
        "metadata": {"name": f"{SET}.1"},
        "involvedObject": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": SET, "namespace": cluster.namespace},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": rfc3339(datetime.now(UTC)),
    }
    cluster.client.create(cluster.path("events"), event)


def create(cluster: Cluster, template: JSON, name: str) -> None:
    body = {"kind": "Pod", "metadata": {**template["metadata"], "name": name}, "spec": template["spec"]}
    cluster.client.create(cluster.path("pods"), body)


def is_created(cluster: Cluster, template: JSON, name: str) -> bool:
    """The API server takes a moment to forget a quota."""
    try:
        create(cluster, template, name)
    except KubeError:
        return False
    return True


@pytest.mark.parametrize("cause", REFUSALS)
def test_refused_pods_of_a_group_are_told_in_the_words_of_the_api_server(cluster: Cluster, cause: str) -> None:
    words, limit, serving = REFUSALS[cause]
    path = ""
    if limit is not None:
        plural = {"ResourceQuota": "resourcequotas", "LimitRange": "limitranges"}[limit["kind"]]
        cluster.client.create(cluster.path(plural), {"metadata": {"name": "small"}, "spec": limit["spec"]})
        path = cluster.path(plural, "small")
        if "status" in limit:
            cluster.client.patch_status(path, limit["status"])
    cluster.pair("wide", **{**GROUP_SPEC, "serving": {**GROUP_SPEC["serving"], **serving}})
    found = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{cluster.namespace}/leaderworkersets/{SET}"
    eventually(lambda: cluster.client.exists(found))
    templates = cluster.client.get(found)["spec"]["leaderWorkerTemplate"]
    refuse(cluster, templates["leaderTemplate"])
    message = cluster.wait_condition("modelpairs", "wide", "Ready", "False", "FailedCreate")
    assert words in message
    [event] = eventually(lambda: [one for one in cluster.events("wide") if one["reason"] == "FailedCreate"])
    assert words in event["message"]
    if path:
        cluster.client.delete(path)
    else:
        scheduling = "/apis/scheduling.k8s.io/v1/priorityclasses"
        cluster.client.create(scheduling, {"metadata": {"name": "later"}, "value": 10})
    for name, template in ((f"{SET}-0", "leaderTemplate"), (f"{SET}-0-1", "workerTemplate")):
        eventually(lambda name=name, template=template: is_created(cluster, templates[template], name))
    cluster.wait_condition("modelpairs", "wide", "Ready", "False", "NoReadyReplicas")
