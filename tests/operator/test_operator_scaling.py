"""A real operator before a real API server: the number of a pair's servers, by hand and by an autoscaler."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slipstream_core.manifest.reports import GatewayReport, object_key, report_lease
from slipstream_operator.children.workload import FIELD_MANAGER

from tests.operator.operator_process import RESYNC_S, Cluster, OperatorProcess, grant, pair_spec, settled
from tests.operator.pair_objects import GROUP_SPEC, JSON
from tests.support.foreign_kinds import leader_worker_sets, scaled_objects
from tests.support.kube import KubeApiServer, install_definitions
from tests.support.polling import eventually

PROMETHEUS = "http://prometheus.monitoring:9090"
SERVERS = {"gpus": 0}


@pytest.fixture(scope="module", autouse=True)
def definitions(kube: KubeApiServer) -> None:
    install_definitions(kube, [leader_worker_sets(), scaled_objects()])


@pytest.fixture(scope="module")
def cluster(kube: KubeApiServer, crds: None) -> Cluster:
    return grant(kube, kube.namespace("operator-scaling"))


def workload(cluster: Cluster, name: str) -> str:
    return cluster.path("deployments", f"slipstream-{name}")


def group(cluster: Cluster, name: str) -> str:
    namespace = cluster.namespace
    return f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets/slipstream-{name}-group"


def horizontal(cluster: Cluster, name: str) -> str:
    namespace = cluster.namespace
    return f"/apis/autoscaling/v2beta2/namespaces/{namespace}/horizontalpodautoscalers/slipstream-{name}"


def scaled_object(cluster: Cluster, name: str) -> str:
    return f"/apis/keda.sh/v1alpha1/namespaces/{cluster.namespace}/scaledobjects/slipstream-{name}"


def number(cluster: Cluster, path: str) -> int | None:
    return cluster.client.get(path)["spec"].get("replicas") if cluster.client.exists(path) else None


def autoscaled(name: str, **autoscaling: object) -> JSON:
    return {**pair_spec(name), "serving": {**SERVERS, "autoscaling": {"maxReplicas": 4, **autoscaling}}}


@pytest.mark.usefixtures("operator")
def test_kubectl_scales_a_deployment(kube: KubeApiServer, cluster: Cluster) -> None:
    cluster.pair("plain", serving=SERVERS)
    path = workload(cluster, "plain")
    eventually(lambda: number(cluster, path) == 1)
    kube.kubectl("scale", "modelpair/plain", "--replicas=3", namespace=cluster.namespace)
    eventually(lambda: number(cluster, path) == 3)
    generation = cluster.client.get(path)["metadata"]["generation"]
    cluster.client.patch_status(path, {"observedGeneration": generation, "replicas": 2, "readyReplicas": 1})
    scale = f"{cluster.path('modelpairs', 'plain')}/scale"
    seen = eventually(lambda: found if (found := cluster.client.get(scale)["status"])["replicas"] == 2 else None)
    assert seen["selector"] == "app.kubernetes.io/name=slipstream-triton,slipstream.dev/pair=plain"


@pytest.mark.usefixtures("operator")
def test_kubectl_waits_for_a_pair_at_zero_and_for_a_disabled_policy(kube: KubeApiServer, cluster: Cluster) -> None:
    cluster.pair("zero", serving={**SERVERS, "replicas": 0})
    cluster.policy("zero")

    def wait() -> None:
        for item in ("modelpair/zero", "speculationpolicy/zero"):
            kube.kubectl("wait", item, "--for=condition=Ready", "--timeout=30s", namespace=cluster.namespace)

    wait()
    cluster.wait_condition("speculationpolicies", "zero", "Held", "True", "PairScaledToZero")
    cluster.patch("speculationpolicies", "zero", {"spec": {"enabled": False}})
    cluster.wait_condition("speculationpolicies", "zero", "Held", "True", "Disabled")
    wait()
    assert "Disabled" in kube.kubectl("get", "speculationpolicies", namespace=cluster.namespace)


@pytest.mark.usefixtures("operator")
def test_kubectl_scales_groups(kube: KubeApiServer, cluster: Cluster) -> None:
    cluster.pair("grouped", **{**GROUP_SPEC, "model": "grouped"})
    path = group(cluster, "grouped")
    eventually(lambda: number(cluster, path) == 1)
    kube.kubectl("scale", "modelpair/grouped", "--replicas=3", namespace=cluster.namespace)
    eventually(lambda: number(cluster, path) == 3)
    found = json.loads(kube.kubectl("get", "modelpair/grouped", "-o", "json", namespace=cluster.namespace))
    assert found["status"]["selector"].endswith(",leaderworkerset.sigs.k8s.io/worker-index=0"), "one pod of each group"


@pytest.mark.usefixtures("operator")
def test_the_operator_leaves_the_number_to_the_autoscaler_that_it_has_made(cluster: Cluster) -> None:
    cluster.declare("ModelPair", "auto", autoscaled("auto", minReplicas=2))
    eventually(lambda: cluster.client.exists(horizontal(cluster, "auto")))
    path = workload(cluster, "auto")
    cluster.client.patch(f"{path}/scale", {"spec": {"replicas": 3}})
    cluster.patch("modelpairs", "auto", {"spec": {"serving": {"drainSeconds": 60}}})
    eventually(lambda: cluster.client.get(path)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] < 130)
    assert settled(lambda: number(cluster, path), for_s=2 * RESYNC_S) == 3
    fields = cluster.client.get(path)["metadata"]["managedFields"]
    owners = {entry["manager"] for entry in fields if "f:replicas" in entry["fieldsV1"].get("f:spec", {})}
    assert FIELD_MANAGER not in owners, "the operator would write an old number while the autoscaler writes a new one"
    version = cluster.client.get(horizontal(cluster, "auto"))["metadata"]["resourceVersion"]
    assert (
        settled(
            lambda: cluster.client.get(horizontal(cluster, "auto"))["metadata"]["resourceVersion"], for_s=2 * RESYNC_S
        )
        == version
    ), "it is written once"
    cluster.patch("modelpairs", "auto", {"spec": {"serving": {"autoscaling": None}}})
    eventually(lambda: not cluster.client.exists(horizontal(cluster, "auto")))
    assert number(cluster, path) == 3


@pytest.mark.usefixtures("operator")
def test_two_owners_of_the_number_are_refused(kube: KubeApiServer, cluster: Cluster) -> None:
    """By the API server itself where it has CEL, which that of the tests has not."""
    cluster.declare("ModelPair", "torn", autoscaled("torn"))
    kube.kubectl("scale", "modelpair/torn", "--replicas=3", namespace=cluster.namespace)
    message = cluster.wait_condition("modelpairs", "torn", "Accepted", "False", "InvalidSpec")
    assert "spec.serving.replicas has no effect with spec.serving.autoscaling" in message.replace(":", "")


def test_a_waiting_request_starts_the_first_server_by_an_event(by_events: Cluster) -> None:
    cluster = by_events
    cluster.declare("ModelPair", "asleep", autoscaled("asleep", minReplicas=0))
    path = workload(cluster, "asleep")
    eventually(lambda: number(cluster, path) == 1)
    cluster.client.patch(f"{path}/scale", {"spec": {"replicas": 0}})
    cluster.wait_condition("modelpairs", "asleep", "Ready", "True", "Idle")
    eventually(lambda: not cluster.client.exists(horizontal(cluster, "asleep")))
    assert settled(lambda: number(cluster, path), for_s=2 * RESYNC_S) == 0
    key = object_key(cluster.namespace, "ModelPair", "asleep")
    report = GatewayReport(
        name="gateway",
        namespaces=(cluster.namespace,),
        applied={},
        renewed=datetime.now(UTC),
        in_use=(key,),
        waiting=(key,),
    )
    cluster.client.create(cluster.path("leases"), report_lease(report, namespace=cluster.namespace))
    eventually(lambda: number(cluster, path) == 1)
    eventually(lambda: cluster.client.exists(horizontal(cluster, "asleep")))


def test_a_scaled_object_takes_the_place_of_a_horizontal_pod_autoscaler(
    kube: KubeApiServer, crds: None, tmp_path: Path
) -> None:
    """The operator gets the address of Prometheus later than the pair its autoscaler."""
    namespace = kube.namespace("operator-keda")
    cluster = grant(kube, namespace)
    cluster.declare("ModelPair", "auto", autoscaled("auto"))
    with OperatorProcess(kube, namespace, tmp_path) as before:
        before.wait_ready()
        eventually(lambda: cluster.client.exists(horizontal(cluster, "auto")))
        before.terminate()
    with OperatorProcess(kube, namespace, tmp_path, "--prometheus-url", PROMETHEUS) as after:
        after.wait_ready()
        made = eventually(
            lambda: cluster.client.get(path) if cluster.client.exists(path := scaled_object(cluster, "auto")) else None
        )
        assert made["spec"]["triggers"][0]["metadata"]["serverAddress"] == PROMETHEUS
        eventually(lambda: not cluster.client.exists(horizontal(cluster, "auto")))
