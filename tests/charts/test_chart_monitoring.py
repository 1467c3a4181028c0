"""Dashboards, alerts and monitors arrive in a cluster as `deploy` has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import yaml
from slipstream_operator.children.identity import NAME, TRITON, VLLM

from deploy.generate.__main__ import ALERTS, ROOT, dashboards

JSON = dict[str, Any]
RULES = (ROOT / ALERTS).read_text(encoding="utf-8")


def test_alerts_arrive_unchanged(render: Callable[..., list[JSON]], only: Callable[..., JSON]) -> None:
    found = only(render({"monitoring": {"prometheusRule": {"enabled": True}}}), "PrometheusRule")
    assert found["spec"] == yaml.safe_load(RULES)


def test_alerts_lead_to_where_the_runbooks_are_published(
    render: Callable[..., list[JSON]], only: Callable[..., JSON]
) -> None:
    page = "https://docs.example.com/alerts.html"
    objects = render({"monitoring": {"prometheusRule": {"enabled": True, "runbooks": page}}})
    rules = [rule for group in only(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"{page}#{rule['alert'].lower()}"


def test_dashboards_arrive_in_their_config_map_unchanged(
    render: Callable[..., list[JSON]], only: Callable[..., JSON]
) -> None:
    found = only(render({"monitoring": {"dashboard": {"enabled": True}}}), "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in found["data"].items()} == dashboards()


def test_monitors_watch_ports_that_services_have(render: Callable[..., list[JSON]], only: Callable[..., JSON]) -> None:
    values = {"monitoring": {"serviceMonitor": {"enabled": True}}}
    objects = render(values)
    for component, name in (("gateway", "gateway-admin"), ("operator", "operator")):
        monitor, service = only(objects, "ServiceMonitor", component), only(objects, "Service", name)
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {end["port"] for end in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
    anywhere = render({**values, "watchNamespaces": ["*"]})
    for program in (TRITON, VLLM):
        servers = only(objects, "ServiceMonitor", program.name)["spec"]
        assert servers["selector"]["matchLabels"] == {NAME: f"slipstream-{program.name}"}
        assert {end["port"] for end in servers["endpoints"]} <= program.ports.keys()
        assert servers["namespaceSelector"] == {"matchNames": ["serving"]}
        everywhere = only(anywhere, "ServiceMonitor", program.name)["spec"]
        assert everywhere["namespaceSelector"] == {"any": True}
