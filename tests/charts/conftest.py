"""The chart, rendered by Helm's own library: no cluster, no binary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from helm_python.chart import Chart

from tests.support.manifests import JSON

CHART = Path(__file__).parents[2] / "charts" / "slipstream"
RELEASE, NAMESPACE = "demo", "serving"

Render = Callable[..., list[JSON]]
Only = Callable[..., JSON]


def before_1_22(item: JSON) -> JSON:
    """`item` as a test server can read it: the grace period of a probe came with Kubernetes 1.22."""
    for container in item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
        container.get("livenessProbe", {}).pop("terminationGracePeriodSeconds", None)
    return item


# Everything that values can switch on, together.
EVERYTHING: JSON = {
    "watchNamespaces": ["*"],
    "commonLabels": {"team": "inference"},
    "imagePullSecrets": [{"name": "registry"}],
    "gateway": {
        "image": {"repository": "mine/slipstream-gateway", "digest": "sha256:" + "0" * 64},
        "extProc": {"enabled": True},
        "extraArgs": ["--first-chunk-timeout=60"],
        "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}],
        "extraEnvFrom": [{"secretRef": {"name": "upstream-keys"}}],
        "extraVolumes": [{"name": "fallback", "configMap": {"name": "fallback"}}],
        "extraVolumeMounts": [{"name": "fallback", "mountPath": "/etc/slipstream", "readOnly": True}],
        "podAnnotations": {"example.com/note": "yes"},
        "podLabels": {"example.com/tier": "front"},
        "priorityClassName": "serving",
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "serving", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "autoscaling": {
            "enabled": True,
            "extraMetrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": "slipstream_requests_in_flight"},
                        "target": {"type": "AverageValue", "averageValue": "200"},
                    },
                }
            ],
        },
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["llm.example.com"],
            "tls": [{"secretName": "llm-tls", "hosts": ["llm.example.com"]}],
        },
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateways"}],
            "hostnames": ["llm.example.com"],
            "requestTimeout": "900s",
        },
    },
    "grants": {
        "apiKeys": {"VLLM_API_KEY": {"namespaces": ["team-a"], "hosts": [".vllm.svc"]}},
        "modelNames": [{"prefix": "team-a/", "namespaces": ["team-a"]}],
    },
    "admissionPolicy": {"enabled": True},
    "operator": {
        "replicas": 2,
        "priorityClassName": "serving",
        "prometheusUrl": "http://prometheus.monitoring:9090",
    },
    "redis": {"password": "let me in", "storage": {"className": "fast"}},
    "networkPolicy": {
        "apiServer": {"cidrs": ["10.0.0.1/32"]},
        "gateway": {
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}],
            "upstreams": [{"ports": [{"protocol": "TCP", "port": 8000}]}],
        },
        "servers": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}

MATRIX: dict[str, JSON] = {
    "defaults": {},
    "everything": EVERYTHING,
    "whole-cluster": {"watchNamespaces": ["*"]},
    "namespaced": {**EVERYTHING, "watchNamespaces": ["team-a", "team-b"]},
    "namespaced-with-own": {"watchNamespaces": [NAMESPACE]},
    "autoscaled": {"gateway": {"autoscaling": {"enabled": True}}},
    "no-redis": {"redis": {"enabled": False}},
    "redis-by-url": {"redis": {"url": "rediss://:secret@cache.example.com:6380/1"}},
    "redis-by-secret": {"redis": {"existingSecret": {"name": "cache", "key": "address"}}},
    "waiting-operators": {"operator": {"replicas": 3}},
    "bare": {
        "networkPolicy": {"enabled": False},
        "rbac": {"create": False, "aggregate": False, "killRole": {"create": False}},
        "gateway": {
            "replicas": 1,
            "podDisruptionBudget": {"enabled": False},
            "topologySpread": {"enabled": False},
            "serviceAccount": {"create": False, "name": "mine"},
        },
        "operator": {"serviceAccount": {"create": False, "name": "mine-too"}},
    },
    "keys": {
        "gateway": {"auth": {"existingSecret": {"name": "slipstream-keys"}}, "admin": {"openMetrics": False}},
        "networkPolicy": {"gateway": {"adminFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}},
        "monitoring": {"serviceMonitor": {"enabled": True}},
    },
    "one-port": {"gateway": {"auth": {"allowAnonymous": True}, "admin": {"port": 0}}},
}


def with_access(values: JSON | None) -> JSON:
    """`values` with a word on who may use the gateway, which the chart wants to hear; anybody, where they have none."""
    gateway = (values or {}).get("gateway", {})
    return {**(values or {}), "gateway": {"auth": {"allowAnonymous": True}, **gateway}}


@pytest.fixture(scope="session")
def chart() -> Iterator[Chart]:
    with Chart.load(CHART) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def render(chart: Chart) -> Render:
    """The objects that values give, checked against the schema first as Helm does; notes are left out."""

    def rendered(values: JSON | None = None, *, name: str = RELEASE, namespace: str = NAMESPACE) -> list[JSON]:
        told = with_access(values)
        chart.validate_schema(told)
        files = chart.render(told, name=name, namespace=namespace)
        texts = [text for path, text in files.items() if path.endswith(".yaml")]
        return [found for text in texts for found in yaml.safe_load_all(text) if found]

    return rendered


@pytest.fixture(scope="session")
def notes(chart: Chart) -> Callable[..., str]:
    """What `helm install` prints."""

    def rendered(values: JSON | None = None) -> str:
        files = chart.render(with_access(values), name=RELEASE, namespace=NAMESPACE)
        return files["slipstream/templates/NOTES.txt"]

    return rendered


@pytest.fixture(params=MATRIX, scope="session")
def variant(request: pytest.FixtureRequest, render: Render) -> list[JSON]:
    """The objects of each set of values that the chart is held to."""
    return render(MATRIX[request.param])


@pytest.fixture(scope="session")
def everything() -> JSON:
    """Values that switch on all there is."""
    return EVERYTHING


def _only(objects: list[JSON], kind: str, suffix: str = "") -> JSON:
    found = [item for item in objects if item["kind"] == kind and item["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, f"{len(found)} of kind {kind} end in {suffix!r}"
    return found[0]


@pytest.fixture(scope="session")
def only() -> Callable[..., JSON]:
    """The one object of a kind whose name ends so."""
    return _only


@pytest.fixture(scope="session")
def pod_specs() -> Callable[[list[JSON]], dict[str, JSON]]:
    """The pod specs among objects, by the name of what has them."""

    def found(objects: list[JSON]) -> dict[str, JSON]:
        specs = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Pod"}
        owners = [item for item in objects if item["kind"] in ("Deployment", "StatefulSet")]
        return specs | {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in owners}

    return found
