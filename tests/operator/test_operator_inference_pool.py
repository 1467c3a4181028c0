"""A real operator before a real API server: the InferencePool and the HTTPRoute of a pair."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.operator.pair_objects import JSON, VLLM_SPEC
from tests.support.foreign_kinds import http_routes, inference_pools
from tests.support.kube import KubeApiServer, install_definitions
from tests.support.polling import eventually


@pytest.fixture(scope="module")
def cluster(kube: KubeApiServer, crds: None) -> Cluster:
    install_definitions(kube, [inference_pools(), http_routes()])
    return grant(kube, kube.namespace("operator-pool"))


@pytest.fixture(scope="module")
def operator(
    kube: KubeApiServer, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    with OperatorProcess(kube, cluster.namespace, tmp_path_factory.mktemp("operator")) as running:
        yield running.wait_ready()


def pool(cluster: Cluster) -> str:
    return f"/apis/inference.networking.k8s.io/v1/namespaces/{cluster.namespace}/inferencepools/slipstream-pooled"


def route(cluster: Cluster) -> str:
    return f"/apis/gateway.networking.k8s.io/v1/namespaces/{cluster.namespace}/httproutes/slipstream-pooled"


@pytest.mark.usefixtures("operator")
def test_pool_and_route_come_and_go_with_their_fields(cluster: Cluster) -> None:
    wanted: JSON = {"endpointPicker": {"name": "epp", "failureMode": "FailOpen"}, "gateway": {"name": "inference"}}
    spec = {**VLLM_SPEC, "serving": {**VLLM_SPEC.get("serving", {}), "inferencePool": wanted}}
    cluster.declare("ModelPair", "pooled", spec)
    eventually(lambda: cluster.client.exists(pool(cluster)) and cluster.client.exists(route(cluster)))
    made = cluster.client.get(pool(cluster))
    assert made["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
    assert made["metadata"]["ownerReferences"][0]["name"] == "pooled"
    cluster.client.patch(pool(cluster), {"spec": {"targetPorts": [{"number": 1}]}})  # another writer changes it
    eventually(lambda: cluster.client.get(pool(cluster))["spec"]["targetPorts"] == [{"number": 8000}])
    cluster.patch("modelpairs", "pooled", {"spec": {"serving": {"inferencePool": {"gateway": None}}}})
    eventually(lambda: not cluster.client.exists(route(cluster)))
    assert cluster.client.exists(pool(cluster))
    cluster.patch("modelpairs", "pooled", {"spec": {"serving": {"inferencePool": None}}})
    eventually(lambda: not cluster.client.exists(pool(cluster)))
