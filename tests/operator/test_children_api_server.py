"""Children and a real API server: what it accepts, keeps, and leaves to others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from slipstream_operator.cluster.comparison import has

from tests.operator.pair_objects import EMBEDDED_SPEC, JSON, children, pair_object
from tests.support.kube import KubeApiServer, KubeClient

OPERATOR = "slipstream-operator"
# Version 1.20, the one that tests run with, has no policy/v1 yet.
BUDGETS = "policy/v1beta1"

Apply = Callable[[JSON], dict[str, JSON]]


@pytest.fixture
def client(kube: KubeApiServer) -> KubeClient:
    return kube.client()


@pytest.fixture
def apply(client: KubeClient, namespace: str) -> Apply:
    """Write a pair's children as the operator does, by what the Deployment is now; the objects that come of it."""

    def apply_all(raw: JSON) -> dict[str, JSON]:
        raw["metadata"]["namespace"] = namespace
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/slipstream-{raw['metadata']['name']}"
        live = client.get(path) if client.exists(path) else None
        made = children(raw, live=live, pdb_api_version=BUDGETS)
        return {
            kind: client.apply(client.path_of(child), child, field_manager=OPERATOR) for kind, child in made.items()
        }

    return apply_all


def scale(client: KubeClient, deployment: JSON, replicas: int) -> None:
    """As an autoscaler does it: somebody else, who forces nothing."""
    client.patch(client.path_of(deployment), {"spec": {"replicas": replicas}})


def everything() -> JSON:
    """A pair that uses every part of `serving`, with amounts that the API server writes in its own way."""
    serving = {
        "replicas": 3,
        "gpus": 1,
        "resources": {
            "requests": {"cpu": "0.5", "memory": "1024Mi", "ephemeral-storage": "1000M"},
            "limits": {"cpu": "2000m", "memory": "2048Mi"},
        },
        "nodeSelector": {"pool": "h200"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                }
            }
        },
        "storage": {"claim": "weights"},
        "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/weights"},
        "podSecurityContext": {"runAsUser": 5, "fsGroup": 0, "supplementalGroups": [7, 8]},
        "capabilities": ["IPC_LOCK"],
        "volumes": [
            {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
            {"name": "nvme", "hostPath": {"path": "/mnt/nvme"}},
        ],
        "volumeMounts": [
            {"name": "cache", "mountPath": "/cache", "subPath": "vllm"},
            {"name": "nvme", "mountPath": "/nvme", "readOnly": True},
        ],
        "shmSize": "1024Mi",
        "tmpSize": "8Gi",
        "hostNetwork": True,
    }
    return pair_object(serving=serving)


def test_the_strategy_of_a_deployment_can_change_back_and_forth(apply: Apply):
    """The API server refuses the parameters of one strategy with the other."""
    for strategy in ("RollingUpdate", "Recreate", "RollingUpdate"):
        made = apply(pair_object(serving={"update": {"strategy": strategy}}))["Deployment"]["spec"]["strategy"]
        assert made["type"] == strategy
        assert ("rollingUpdate" in made) == (strategy == "RollingUpdate")


def test_children_are_written_again_without_a_change(apply: Apply):
    raw = pair_object()
    first = apply(raw)
    assert len(first) == 5
    time.sleep(1.1)  # who set a field when is kept in whole seconds: within one, no change shows
    again = apply(raw)
    for kind, child in first.items():
        assert again[kind]["metadata"]["resourceVersion"] == child["metadata"]["resourceVersion"], kind


@pytest.mark.parametrize("raw", [everything(), pair_object(), pair_object(EMBEDDED_SPEC)], ids=["all", "own", "demo"])
def test_what_is_written_stands_there_as_it_was_written(apply: Apply, raw: JSON):
    """So that an operator that has just started finds nothing to write, be an amount in other words or not."""
    written = apply(raw)
    assert len(written) == 5
    for kind, child in children(raw, live=written["Deployment"], pdb_api_version=BUDGETS).items():
        assert has(written[kind], child), kind


def test_the_longest_name_of_a_pair_is_accepted(apply: Apply, client: KubeClient, namespace: str):
    made = apply(pair_object(name="p" * 63))
    assert all(client.exists(client.path_of(child, namespace=namespace)) for child in made.values())


def test_an_autoscalers_replicas_stay(apply: Apply, client: KubeClient):
    raw = pair_object(serving={"replicas": None})
    made = apply(raw)["Deployment"]
    assert made["spec"]["replicas"] == 1
    scale(client, made, 5)
    raw["spec"]["target"]["revision"] = "2"
    after = apply(raw)["Deployment"]
    assert after["spec"]["replicas"] == 5
    assert after["metadata"]["generation"] > made["metadata"]["generation"]


def test_handing_replicas_over_leaves_their_number_until_somebody_takes_it(apply: Apply, client: KubeClient):
    made = apply(pair_object(serving={"replicas": 4}))["Deployment"]
    handed_over = pair_object(serving={"replicas": None})
    assert apply(handed_over)["Deployment"]["spec"]["replicas"] == 4
    assert apply(handed_over)["Deployment"]["spec"]["replicas"] == 4
    scale(client, made, 6)
    assert apply(handed_over)["Deployment"]["spec"]["replicas"] == 6
    scale(client, made, 2)
    assert apply(handed_over)["Deployment"]["spec"]["replicas"] == 2


def test_the_pairs_own_replicas_are_taken_back(apply: Apply, client: KubeClient):
    made = apply(pair_object(serving={"replicas": None}))["Deployment"]
    scale(client, made, 6)
    assert apply(pair_object(serving={"replicas": 2}))["Deployment"]["spec"]["replicas"] == 2


def test_only_a_change_of_what_is_loaded_rolls(apply: Apply):
    def template_after(**changes: object) -> JSON:
        found: JSON = apply(pair_object(**changes))["Deployment"]["spec"]["template"]
        return found

    before = template_after()
    assert template_after(killSwitch=True, serving={"replicas": 9}) == before
    assert template_after(target={"revision": "2"}) != before


def test_what_is_left_out_again_goes_away(apply: Apply):
    pod = apply(everything())["Deployment"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]
    assert pod["tolerations"]
    pod = apply(pair_object())["Deployment"]["spec"]["template"]["spec"]
    assert "nodeSelector" not in pod
    assert "tolerations" not in pod
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}


def test_what_others_add_stays(apply: Apply, client: KubeClient):
    raw = pair_object()
    account = apply(raw)["ServiceAccount"]
    client.patch(client.path_of(account), {"imagePullSecrets": [{"name": "registry"}]})
    assert apply(raw)["ServiceAccount"]["imagePullSecrets"] == [{"name": "registry"}]


def test_the_preflight_container_goes_with_its_draft(apply: Apply):
    assert apply(pair_object())["Deployment"]["spec"]["template"]["spec"]["initContainers"]
    ngram = pair_object(draft={"kind": "ngram", "source": None})
    assert "initContainers" not in apply(ngram)["Deployment"]["spec"]["template"]["spec"]
