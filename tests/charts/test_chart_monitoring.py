"""Dashboards, alerts and monitors arrive in a cluster as `deploy` has them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import yaml
from slipstream_core.manifest import ModelPair, parse
from slipstream_core.manifest.naming import COMPONENT, PART_OF, PART_OF_SLIPSTREAM
from slipstream_operator.children.all import children_of
from slipstream_operator.children.identity import LEADER, TRITON, VLLM
from slipstream_operator.types import ServingDefaults

from deploy.generate.__main__ import ALERTS, ROOT, dashboards
from tests.charts.server_labels import server_labels
from tests.support.foreign_kinds import WITH_GROUPS
from tests.support.manifests import JSON

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
        assert servers["selector"]["matchLabels"] == {PART_OF: PART_OF_SLIPSTREAM, COMPONENT: program.name}
        for labels in server_labels(program):
            assert servers["selector"]["matchLabels"].items() <= labels.items()
        assert {end["port"] for end in servers["endpoints"]} <= program.ports.keys()
        assert servers["namespaceSelector"] == {"matchNames": ["serving"]}
        everywhere = only(anywhere, "ServiceMonitor", program.name)["spec"]
        assert everywhere["namespaceSelector"] == {"any": True}


TWO_NODES = """
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {name: giant, namespace: serving}
spec:
  model: giant
  target: {source: giant}
  draft: {kind: ngram}
  engine: {kind: vllm, tensorParallelSize: 8, pipelineParallelSize: 2}
  serving: {gpus: 8, nodes: 2, storage: {claim: weights}}
"""


def discovered(service: JSON) -> dict[str, str]:
    """What Prometheus' service discovery knows of the targets of a Service, as far as relabelling uses it."""
    labels = service["metadata"]["labels"].items()
    found = {f"__meta_kubernetes_service_label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": value for name, value in labels}
    return found | {"__meta_kubernetes_namespace": service["metadata"]["namespace"]}


def test_monitor_of_vllm_covers_the_leaders_of_groups_and_names_their_pair(
    render: Callable[..., list[JSON]], only: Callable[..., JSON]
) -> None:
    [pair] = [item for item in parse(TWO_NODES) if isinstance(item, ModelPair)]
    children = children_of(pair, uid="u", defaults=ServingDefaults(foreign_kinds=WITH_GROUPS), live=None)
    service, group = only(children, "Service"), only(children, "LeaderWorkerSet")
    monitor = only(render({"monitoring": {"serviceMonitor": {"enabled": True}}}), "ServiceMonitor", "vllm")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    leader = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    [container] = leader["spec"]["containers"]
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= {port["name"] for port in container["ports"]}
    # The controller of LeaderWorkerSets gives this label to every pod: 0 for the leader alone.
    assert service["spec"]["selector"].items() <= {**leader["metadata"]["labels"], **LEADER}.items()
    [endpoint] = monitor["endpoints"]
    [rule] = endpoint["relabelings"]
    known = discovered(service)
    assert rule["separator"].join(known[name] for name in rule["sourceLabels"]) == pair.metadata.key
    assert rule["targetLabel"] == "pair"
