"""The autoscaler among a pair's children."""

from __future__ import annotations

import pytest
import yaml

from tests.operator.pair_objects import GROUP_SPEC, JSON, SPEC, VLLM_SPEC, children, pair_object
from tests.support.foreign_kinds import WITH_GROUPS, leader_worker_sets, scaled_objects
from tests.support.kube import KubeApiServer, install_definitions

PROMETHEUS = "http://prometheus.monitoring:9090"
KINDS = ("HorizontalPodAutoscaler", "ScaledObject")


def pair(spec: JSON = VLLM_SPEC, **autoscaling: object) -> JSON:
    raw = pair_object(spec, serving={"autoscaling": {"maxReplicas": 6, **autoscaling}})
    raw["spec"]["serving"].pop("replicas", None)
    return raw


def test_without_autoscaling_there_is_no_autoscaler():
    assert not set(KINDS) & set(children(pair_object(VLLM_SPEC)))


def test_a_horizontal_pod_autoscaler_has_targets_per_server():
    made = children(pair(minReplicas=2, waitingRequests=3, kvCacheUsage=0.75))
    spec = made["HorizontalPodAutoscaler"]["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "slipstream-acme"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 6)
    assert {each["pods"]["metric"]["name"]: each["pods"]["target"]["averageValue"] for each in spec["metrics"]} == {
        "vllm_num_requests_waiting": "3",
        "vllm_kv_cache_usage_perc": "750m",
    }


def test_requests_of_our_engine_run_before_they_wait():
    raw = pair(SPEC, waitingRequests=2)
    raw["spec"]["engine"]["maxConcurrency"] = 16
    [metric] = children(raw)["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == "slipstream_engine_requests"
    assert metric["pods"]["target"]["averageValue"] == "18"


@pytest.mark.parametrize("minimum", [0, 1])
def test_no_autoscaler_goes_below_one_server(minimum: int):
    """From and to zero is the operator's."""
    assert children(pair(minReplicas=minimum))["HorizontalPodAutoscaler"]["spec"]["minReplicas"] == 1
    assert children(pair(minReplicas=minimum), prometheus=PROMETHEUS)["ScaledObject"]["spec"]["minReplicaCount"] == 1


def test_with_keda_and_prometheus_a_scaled_object_takes_its_place():
    made = children(pair(), prometheus=PROMETHEUS)
    assert "HorizontalPodAutoscaler" not in made
    waiting, cache = made["ScaledObject"]["spec"]["triggers"]
    assert waiting["metadata"] == {
        "serverAddress": PROMETHEUS,
        "query": 'sum(vllm:num_requests_waiting{namespace="prod",model_name="acme-70b"}) + '
        '(sum(slipstream_admission_queued{pair="prod/acme"}) or vector(0))',
        "threshold": "5",
        "ignoreNullValues": "false",
    }
    assert cache["metadata"]["query"] == 'sum(vllm:kv_cache_usage_perc{namespace="prod",model_name="acme-70b"})'
    assert cache["metadata"]["threshold"] == "0.8"


def test_names_in_queries_are_quoted():
    raw = pair()
    raw["spec"]["model"] = 'acme "70b"\\x'
    waiting, _ = children(raw, prometheus=PROMETHEUS)["ScaledObject"]["spec"]["triggers"]
    assert r'model_name="acme \"70b\"\\x"' in waiting["metadata"]["query"]


def test_groups_are_scaled_as_groups():
    made = children(pair(GROUP_SPEC), foreign_kinds=WITH_GROUPS)
    target = made["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "slipstream-acme-group",
    }


@pytest.mark.parametrize("spec", [SPEC, VLLM_SPEC], ids=["slipstream", "vllm"])
@pytest.mark.parametrize("prometheus", [None, PROMETHEUS], ids=KINDS)
def test_the_api_server_accepts_autoscalers(
    kube: KubeApiServer, namespace: str, spec: JSON, prometheus: str | None
) -> None:
    install_definitions(kube, [scaled_objects(), leader_worker_sets()])
    raw = pair(spec)
    raw["metadata"]["namespace"] = namespace
    made = children(raw, prometheus=prometheus, hpa_api_version="autoscaling/v2beta2")
    child = next(made[kind] for kind in KINDS if kind in made)
    client = kube.client()
    kept = client.apply(client.path_of(child), child, field_manager="slipstream-operator")
    assert yaml.safe_dump(kept["spec"]["scaleTargetRef"]) == yaml.safe_dump(child["spec"]["scaleTargetRef"])
