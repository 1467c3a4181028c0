"""A real API server takes what the chart renders."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from helm_python import HelmError
from helm_python.chart import Chart
from helm_python.config import Config

from tests.charts.conftest import JSON, before_1_22
from tests.support.kube import KubeApiServer

# What the test server is too old for, or has no kind of.
TOO_NEW = {
    *("policy/v1", "autoscaling/v2", "gateway.networking.k8s.io/v1", "monitoring.coreos.com/v1"),
    "admissionregistration.k8s.io/v1",  # for the kinds of the chart
}


@pytest.fixture
def render(render: Callable[..., list[JSON]]) -> Callable[..., list[JSON]]:
    """What the test server knows of the chart's objects."""
    return lambda *args, **kwargs: [before_1_22(item) for item in render(*args, **kwargs)]


PRIORITY = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "serving"}, "value": 9}


@pytest.mark.parametrize("kind", ["plain", "everything", "namespaced"])
def test_server_takes_every_object_that_it_knows(
    kube: KubeApiServer, render: Callable[..., list[JSON]], everything: JSON, namespace: str, kind: str
) -> None:
    kube.client().apply_yaml([PRIORITY])
    values = {"plain": {}, "everything": everything, "namespaced": {**everything, "watchNamespaces": [namespace]}}[kind]
    known = [item for item in render(values, namespace=namespace) if item["apiVersion"] not in TOO_NEW]
    manifests = yaml.safe_dump_all(known)
    taken = kube.kubectl("apply", "--server-side", "--dry-run=server", "--filename=-", "--output=name", input=manifests)
    assert len(taken.splitlines()) == len(known) >= 15


def test_second_upgrade_changes_nothing(
    kube: KubeApiServer, render: Callable[..., list[JSON]], only: Callable[..., JSON], namespace: str
) -> None:
    client = kube.client()
    objects = [item for item in render({}, namespace=namespace) if item["apiVersion"] not in TOO_NEW]
    first = client.apply_yaml(objects)
    time.sleep(1.1)  # what is written anew differs by its time, which has seconds
    second = client.apply_yaml(objects)
    claims = [applied.pop(objects.index(only(objects, "PersistentVolumeClaim"))) for applied in (first, second)]
    versions = [[item["metadata"]["resourceVersion"] for item in applied] for applied in (first, second)]
    assert versions[0] == versions[1]
    # This server writes a claim once more when it is first applied again, with the same content.
    for claim in claims:
        del claim["metadata"]["resourceVersion"]
    assert claims[0] == claims[1]


def test_replicas_that_an_autoscaler_has_set_survive_an_upgrade(
    kube: KubeApiServer, render: Callable[..., list[JSON]], only: Callable[..., JSON], namespace: str
) -> None:
    client = kube.client()
    gateway = only(
        render({"gateway": {"autoscaling": {"enabled": True}}}, namespace=namespace), "Deployment", "-gateway"
    )
    path = client.path_of(gateway)
    client.apply(path, gateway, field_manager="helm")
    client.patch(path, {"spec": {"replicas": 7}})
    gateway["spec"]["template"]["metadata"]["annotations"]["changed"] = "yes"
    assert client.apply(path, gateway, field_manager="helm")["spec"]["replicas"] == 7


@pytest.mark.parametrize("named", [["*"], ["team-a"], []], ids=["cluster", "named", "own"])
def test_upgrade_that_would_leave_pairs_unserved_is_refused(
    kube: KubeApiServer, chart: Chart, render: Callable[..., list[JSON]], namespace: str, named: list[str]
) -> None:
    """The default was the whole cluster once."""
    objects = render({"watchNamespaces": named}, namespace=namespace)
    kube.client().apply_yaml([item for item in objects if item["kind"] == "Deployment"])
    values: JSON = {"gateway": {"auth": {"allowAnonymous": True}}}
    with Config(kubeconfig_path=kube.kubeconfig(), namespace=namespace) as config:

        def upgrade(**more: Any) -> dict[str, str]:
            return config.render(chart, {**values, **more}, name="demo", namespace=namespace, is_upgrade=True)

        if named == ["*"]:
            with pytest.raises(HelmError, match=f"would serve only those of {namespace}: list the namespaces"):
                upgrade()
        else:
            assert upgrade()
        assert upgrade(watchNamespaces=["*"])
        assert upgrade(watchNamespaces=[namespace])
