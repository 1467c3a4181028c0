"""The real gateway and operator, started with the arguments of the chart and the rights of its roles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from slipstream_core.manifest.reports import REPORT_SELECTOR

from tests.charts.conftest import JSON, Only, Render
from tests.charts.release import EXAMPLE, Release, answers, until
from tests.support.http_server import Asked, Reply, answering
from tests.support.kube import KubeApiServer
from tests.support.manifests import manifest

TIMEOUT_S = 60.0
CHILDREN = {
    "/apis/apps/v1/namespaces/{}/deployments",
    "/api/v1/namespaces/{}/services",
    "/api/v1/namespaces/{}/configmaps",
    "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}


@pytest.fixture
def release(
    kube: KubeApiServer,
    crds: object,
    namespace: str,
    render: Render,
    only: Only,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Release]:
    values = {"watchNamespaces": [namespace], **getattr(request, "param", {})}
    objects = render(values, namespace=namespace)
    started = Release(kube, objects, only, namespace, tmp_path)
    with started.processes:
        yield started


def test_gateway_reads_pairs_reports_and_is_ready(
    release: Release, kube: KubeApiServer, free_ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    kube.kubectl("apply", "--filename", str(EXAMPLE), namespace=release.namespace)
    [port] = free_ports(1)
    gateway = release.start("gateway", port=port, snapshot=tmp_path / "snapshot.json")
    health = answers(f"http://127.0.0.1:{port}/health/ready")
    ready = until(lambda: (found := health()) and '"configuration":"cluster"' in found["text"] and found, gateway)
    assert ready["status"] == 200
    models = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["slipstream-embedded"]
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases"
    [lease] = until(lambda: kube.client().items(leases, labelSelector=REPORT_SELECTOR), gateway)
    assert f"{release.namespace}/ModelPair/embedded" in str(lease["metadata"]["annotations"])
    until((tmp_path / "snapshot.json").exists, gateway)
    assert "forbidden" not in gateway.log_tail(lines=1000)
    gateway.stop(timeout_s=10)
    assert kube.client().items(leases, labelSelector=REPORT_SELECTOR) == []


class Tenant(NamedTuple):
    """A server of a tenant, and the `authorization` of each POST that it got."""

    port: int
    seen: list[str | None]


@pytest.fixture
def tenant() -> Iterator[Tenant]:
    seen: list[str | None] = []
    message = {"role": "assistant", "content": "hello"}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()

    def answer(asked: Asked) -> Reply:
        if asked.method == "POST":  # the checks of servers come at any moment
            seen.append(asked.headers.get("authorization"))
        return Reply(body=body, headers={"content-type": "application/json"})

    with answering(answer) as url:
        yield Tenant(int(url.rpartition(":")[2]), seen)


GRANTED: JSON = {
    "grants": {
        "apiKeys": {"TEAM_API_KEY": {"namespaces": ["*"], "hosts": ["127.0.0.1"]}},
        "modelNames": [{"prefix": "theirs", "namespaces": ["elsewhere"]}],
    }
}


@pytest.mark.parametrize("release", [GRANTED], ids=["granted"], indirect=True)
def test_keys_and_names_are_for_the_granted_alone_and_refused_pairs_say_why(
    release: Release,
    kube: KubeApiServer,
    free_ports: Callable[[int], list[int]],
    tmp_path: Path,
    tenant: Tenant,
    only: Only,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEAM_API_KEY", "the-gateways-own")
    grants = tmp_path / "grants.yaml"
    grants.write_text(only(release.objects, "ConfigMap", "-grants")["data"]["grants.yaml"])
    pairs = f"/apis/slipstream.dev/v1alpha1/namespaces/{release.namespace}/modelpairs"
    for name, host in (("granted", "127.0.0.1"), ("foreign", "localhost"), ("theirs", "127.0.0.1")):
        arm = {"protocol": "openai", "model": "m", "apiKeyEnv": "TEAM_API_KEY"}
        arm["endpoints"] = [f"http://{host}:{tenant.port}"]
        spec = {"model": name, "engine": {"kind": "external", "arms": {"plain": arm}}}
        kube.client().create(pairs, manifest("ModelPair", name, spec))

    port, liveness, metrics = free_ports(3)
    gateway = release.start("gateway", port=port, snapshot=tmp_path / "snapshot.json", grants=grants)
    operator = release.start("operator", liveness_port=liveness, metrics_port=metrics, grants=grants)
    models = answers(f"http://127.0.0.1:{port}/v1/models")
    until(lambda: (found := models()) and '"granted"' in found["text"], gateway)
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    for name in ("foreign", "theirs", "granted"):
        httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=chat | {"model": name}, timeout=TIMEOUT_S)
    assert tenant.seen == ["Bearer the-gateways-own"]
    refusal = f"spec.engine.arms.plain.apiKeyEnv: 'TEAM_API_KEY' is not granted to 'http://localhost:{tenant.port}'"
    assert refusal in gateway.log_tail(lines=1000)

    def ready(name: str) -> JSON | None:
        conditions = kube.client().get(f"{pairs}/{name}").get("status", {}).get("conditions", ())
        return next((condition for condition in conditions if condition["type"] == "Ready"), None)

    condition = until(lambda: ready("foreign"), operator)
    assert (condition["status"], condition["reason"]) == ("False", "ApiKeyNotGranted")
    assert refusal in condition["message"]
    condition = until(lambda: ready("theirs"), operator)
    assert condition["reason"] == "ModelNameNotGranted"
    assert f"'theirs' is not granted to namespace {release.namespace}" in condition["message"]


def test_operator_makes_children_and_writes_status(
    release: Release, kube: KubeApiServer, free_ports: Callable[[int], list[int]]
) -> None:
    liveness, metrics = free_ports(2)
    operator = release.start("operator", liveness_port=liveness, metrics_port=metrics)
    kube.kubectl("apply", "--filename", str(EXAMPLE), namespace=release.namespace)
    client = kube.client()
    for path in CHILDREN:
        child = f"{path.format(release.namespace)}/slipstream-embedded"
        until(lambda child=child: client.exists(child), operator)  # type: ignore[misc]
    pair = f"/apis/slipstream.dev/v1alpha1/namespaces/{release.namespace}/modelpairs/embedded"
    state = until(lambda: client.get(pair).get("status", {}).get("state"), operator)
    assert state == "NotReady"  # nobody plays the kubelet here
    deployment = client.get(f"/apis/apps/v1/namespaces/{release.namespace}/deployments/slipstream-embedded")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "slipstream-triton:0.3.0"
    policy = client.get(
        f"/apis/networking.k8s.io/v1/namespaces/{release.namespace}/networkpolicies/slipstream-embedded"
    )
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    gateways = release.pods("gateway")
    [rule] = policy["spec"]["ingress"]  # nobody scrapes without a value that says so
    [peer] = rule["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": release.namespace}
    assert peer["podSelector"]["matchLabels"].items() <= gateways["metadata"]["labels"].items()
    assert rule["ports"] == [{"protocol": "TCP", "port": 8001}]
    for port, path in ((liveness, "/healthz"), (metrics, "/ready"), (metrics, "/metrics")):
        ask = answers(f"http://127.0.0.1:{port}{path}")
        until(lambda ask=ask: (found := ask()) and found["status"] == 200, operator)  # type: ignore[misc]
    assert "forbidden" not in operator.log_tail(lines=1000)
