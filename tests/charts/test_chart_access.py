"""Who may use what the chart installs, and the admin port."""

from __future__ import annotations

import helm_python
import pytest
from helm_python.chart import Chart

from tests.charts.conftest import JSON, Only, Render

KEYS: JSON = {"gateway": {"auth": {"existingSecret": {"name": "slipstream-keys"}}}}


def container(objects: list[JSON], only: Only) -> JSON:
    [found] = only(objects, "Deployment", "-gateway")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_chart_wants_to_hear_who_may_use_the_gateway(chart: Chart) -> None:
    with pytest.raises(
        helm_python.HelmError, match=r"gateway\.auth: set existingSecret\.name to a Secret with API keys"
    ):
        chart.render({}, name="demo", namespace="serving")


def test_keys_come_from_a_secret_that_is_followed(render: Render, only: Only) -> None:
    objects = render(KEYS)
    found = container(objects, only)
    assert "--keys=/etc/slipstream-keys/keys.json" in found["args"]
    assert "--allow-anonymous" not in found["args"]
    [mount] = [mount for mount in found["volumeMounts"] if mount["name"] == "keys"]
    assert mount["readOnly"]
    assert "subPath" not in mount  # such a file would never change
    volumes = only(objects, "Deployment", "-gateway")["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": "slipstream-keys", "defaultMode": 0o440} in [volume.get("secret") for volume in volumes]


def test_admin_port_is_in_no_way_from_outside(render: Render, only: Only, everything: JSON) -> None:
    objects = render({**everything, "gateway": {**everything["gateway"], "service": {"type": "LoadBalancer"}}})
    admin = only(objects, "Service", "-gateway-admin")
    assert admin["spec"]["type"] == "ClusterIP"
    assert [port["name"] for port in only(objects, "Service", "-gateway")["spec"]["ports"]] == ["http"]
    for kind in ("Ingress", "HTTPRoute"):
        assert "admin" not in str(only(objects, kind)["spec"])


def test_admin_port_is_for_whom_the_policy_names(render: Render, only: Only) -> None:
    def admin_rule(values: JSON) -> JSON:
        rules = only(render(values), "NetworkPolicy", "-gateway")["spec"]["ingress"]
        [rule] = [rule for rule in rules if rule["ports"][0]["port"] == 8081]
        assert isinstance(rule, dict)
        return rule

    assert admin_rule({})["from"] == [{"podSelector": {}}]
    named = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert admin_rule({"networkPolicy": {"gateway": {"adminFrom": named}}})["from"] == named


@pytest.mark.parametrize(("port", "scraped"), [(8081, "admin"), (9000, "admin"), (0, "http")])
def test_prometheus_scrapes_the_port_that_has_metrics(port: int, scraped: str, render: Render, only: Only) -> None:
    objects = render({"gateway": {"admin": {"port": port}}, "monitoring": {"serviceMonitor": {"enabled": True}}})
    [endpoint] = only(objects, "ServiceMonitor", "-gateway")["spec"]["endpoints"]
    assert endpoint["port"] == scraped
    ports = {found["name"]: found["containerPort"] for found in container(objects, only)["ports"]}
    assert ports == ({"http": 8080, "admin": port} if port else {"http": 8080})
    args = container(objects, only)["args"]
    assert (f"--admin-port={port}" in args) == ("--open-metrics" in args) == bool(port)
