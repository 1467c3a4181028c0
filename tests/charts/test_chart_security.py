"""Pods keep to the `restricted` pod security standard, and the network to what they need."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable

from slipstream_core.manifest.naming import COMPONENT, GRPC_PORT_NAME, HTTP_PORT_NAME, PART_OF, PART_OF_SLIPSTREAM
from slipstream_operator.children.identity import TRITON, VLLM

from tests.charts.conftest import JSON, Only, Render
from tests.charts.server_labels import server_labels

PodSpecs = Callable[[list[JSON]], dict[str, JSON]]

# https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def test_every_pod_is_restricted(variant: list[JSON], pod_specs: PodSpecs) -> None:
    specs = pod_specs(variant)
    assert len(specs) >= 3
    for spec in specs.values():
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        security = spec["securityContext"]
        assert spec["enableServiceLinks"] is False  # a namespace's Services would become variables, ours among them
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in spec.get("volumes", []):
            assert set(volume) - {"name"} <= VOLUMES


def test_every_container_is_restricted_and_has_a_read_only_root(variant: list[JSON], pod_specs: PodSpecs) -> None:
    for spec in pod_specs(variant).values():
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in security
            assert not any("hostPort" in port for port in container.get("ports", []))
            assert {"requests", "limits"} <= container["resources"].keys()
            assert "memory" in container["resources"]["limits"]


def test_tokens_are_mounted_where_they_are_used_and_nowhere_else(variant: list[JSON], pod_specs: PodSpecs) -> None:
    with_token = {name for name, spec in pod_specs(variant).items() if spec["automountServiceAccountToken"]}
    assert with_token == {"demo-slipstream-gateway", "demo-slipstream-operator"}
    accounts = [item for item in variant if item["kind"] == "ServiceAccount"]
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


def test_no_password_is_outside_a_secret(render: Render) -> None:
    for redis in ({"url": "redis://:tell-nobody@cache:6379"}, {"password": "tell-nobody"}):
        objects = render({"redis": redis})
        assert [item["kind"] for item in objects if "tell-nobody" in str(item)] == []
        [secret] = [item for item in objects if item["kind"] == "Secret" and "url" in item["data"]]
        assert b"tell-nobody" in b64decode(secret["data"]["url"])


def policy(objects: list[JSON], only: Only, component: str) -> tuple[list[JSON], list[JSON]]:
    """Its ways in and out."""
    spec = only(objects, "NetworkPolicy", component)["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    return spec["ingress"], spec.get("egress", [])


def ports(rules: list[JSON]) -> list[int]:
    return sorted({port["port"] for rule in rules for port in rule["ports"]})


def test_gateway_and_operator_reach_what_they_need_and_nothing_else(render: Render, only: Only) -> None:
    objects = render({"redis": {"url": "redis://cache:6380"}, "networkPolicy": {"redis": {"ports": [6380]}}})
    for component, way_in, ways_out in (
        ("gateway", [8080, 8081], [53, 443, 6380, 6443, 8000, 8001]),
        ("operator", [9090], [53, 443, 6380, 6443]),
    ):
        ingress, egress = policy(objects, only, component)
        assert ports(ingress) == way_in
        assert ports(egress) == ways_out


def test_gateway_reaches_the_servers_of_pairs_by_the_operators_label(render: Render, only: Only) -> None:
    for namespaces, expected in (
        (["*"], [{}]),
        ([], [{"matchLabels": {"kubernetes.io/metadata.name": "serving"}}]),
        (["a", "b"], [{"matchLabels": {"kubernetes.io/metadata.name": name}} for name in ("a", "b")]),
    ):
        _, egress = policy(render({"watchNamespaces": namespaces}), only, "gateway")
        for program, port in ((TRITON, GRPC_PORT_NAME), (VLLM, HTTP_PORT_NAME)):
            [rule] = [rule for rule in egress if ports([rule]) == [program.ports[port]]]
            servers = {"matchLabels": {PART_OF: PART_OF_SLIPSTREAM, COMPONENT: program.name}}
            assert all(servers["matchLabels"].items() <= labels.items() for labels in server_labels(program))
            assert rule["to"] == [{"namespaceSelector": selector, "podSelector": servers} for selector in expected]


def test_servers_of_pairs_are_for_gateways_and_whoever_scrapes(render: Render, only: Only) -> None:
    def server_rules(values: JSON) -> list[JSON] | None:
        [container] = only(render(values), "Deployment", "-operator")["spec"]["template"]["spec"]["containers"]
        found = [text.removeprefix("--server-ingress=") for text in container["args"] if "--server-ingress" in text]
        return json.loads(found[0]) if found else None

    prometheus = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    rules = server_rules({"networkPolicy": {"servers": {"metricsFrom": prometheus}}})
    assert rules is not None
    gateways, scrapers = rules
    assert (ports([gateways]), ports([scrapers])) == ([TRITON.ports[GRPC_PORT_NAME]], [TRITON.ports["metrics"]])
    assert scrapers["from"] == prometheus
    assert server_rules({}) == [gateways]
    assert server_rules({"networkPolicy": {"enabled": False}}) is None


def test_external_upstreams_and_callers_are_configured(render: Render, only: Only, everything: JSON) -> None:
    ingress, egress = policy(render(everything), only, "gateway")
    assert {"ports": [{"protocol": "TCP", "port": 8000}]} in egress
    [rule] = [rule for rule in ingress if ports([rule]) == [8080]]
    callers = [peer.get("namespaceSelector") or peer["podSelector"] for peer in rule["from"]]
    assert {"matchLabels": {"kubernetes.io/metadata.name": "apps"}} in callers
    test = only(render(everything), "Pod")["metadata"]["labels"]
    assert any(peer["matchLabels"].items() <= test.items() for peer in callers), "helm test must get in"


def test_redis_of_the_chart_is_reached_by_the_two_alone(render: Render, only: Only) -> None:
    ingress, egress = policy(render(), only, "redis")
    [rule] = ingress
    components = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in rule["from"]}
    assert (components, egress) == ({"gateway", "operator"}, [])


def test_without_redis_nobody_has_a_way_to_it(render: Render, only: Only) -> None:
    for component in ("gateway", "operator"):
        assert 6379 not in ports(policy(render({"redis": {"enabled": False}}), only, component)[1])


def test_helm_test_asks_the_gateway_by_its_service(render: Render, only: Only) -> None:
    objects = render({"gateway": {"service": {"port": 8123}}})
    pod = only(objects, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    [container] = pod["spec"]["containers"]
    service = only(objects, "Service", "-gateway")["metadata"]["name"]
    assert container["args"][1:] == [f"http://{service}:8123", "/health/ready", "/v1/models"]
    with_keys = only(render({"gateway": {"auth": {"existingSecret": {"name": "keys"}}}}), "Pod")
    assert with_keys["spec"]["containers"][0]["args"][2:] == ["/health/ready"]  # a test has no key
    compile(container["args"][0], "helm test", "exec")


def test_helm_test_passes_on_a_gateway_and_fails_without_one(render: Render, only: Only, gateway_url: str) -> None:
    [container] = only(render(), "Pod")["spec"]["containers"]
    script, _, *paths = container["args"]

    def run(url: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, url, *paths], check=False, capture_output=True, text=True, timeout=30
        )

    done = run(gateway_url)
    assert done.returncode == 0, done.stderr
    assert '/v1/models 200 {"object": "list"' in done.stdout
    assert run("http://127.0.0.1:9").returncode != 0
