"""Dashboard and alerts ask for metrics and labels that gateway and operator really have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from slipstream_gateway.director.configuration import ConfigurationStatus
from slipstream_gateway.director.outcome import Outcome
from slipstream_gateway.director.parity import ParityCount
from slipstream_gateway.learning import ClassEvidence, Effect
from slipstream_gateway.settings import TelemetrySettings
from slipstream_gateway.stores.status import StoreStatus
from slipstream_gateway.telemetry.providers import Telemetry
from slipstream_gateway.types import Arm, Decision, Reason
from slipstream_gateway.upstreams.base import Usage
from slipstream_operator.children.identity import NAME, SERVERS_NAME
from slipstream_operator.children.service import PORTS
from slipstream_operator.cluster.resources import Kind
from slipstream_operator.metrics import Metrics

JSON = dict[str, Any]

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "dashboards" / "slipstream.json").read_text())
METRIC = re.compile(r"\b(?:slipstream|gen_ai)_[a-z0-9_]+\b")
# Prometheus and Kubernetes add these to every series that they scrape.
ADDED = {"pod", "le"}


def panels() -> Iterator[JSON]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """Labels by the name of a series, as gateway and operator expose them."""
    found: dict[str, set[str]] = {}
    for text in (gateway_page(), operator_page()):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def gateway_page() -> str:
    telemetry = Telemetry(TelemetrySettings(), in_flight=lambda: 1, queued=lambda: 1)
    decision = Decision(
        arm=Arm.SPECULATIVE,
        reason=Reason.SPECULATION_PAYS,
        request_class="code/long",
        draft_length=5,
        detail="",
        numbers={},
    )
    usage = Usage(prompt_tokens=9, output_tokens=20, drafted=15, accepted=12, steps=8)
    telemetry.record(
        Outcome(
            pair="llm/acme",
            model="acme",
            decision=decision,
            status="ok",
            e2e_s=0.5,
            ttft_s=0.1,
            tpot_s=0.02,
            usage=usage,
        )
    )
    telemetry.rejected("overloaded")
    telemetry.upstream_failed(endpoint="grpc://x:1", error="upstream_failed")
    telemetry.observe_store(StoreStatus)
    telemetry.observe_configuration(lambda: ConfigurationStatus(origin="cluster"))
    counted = ParityCount(pair="llm/acme", request_class="code/long", checked=2, mismatched=1, dropped={"failed": 1})
    telemetry.observe_parity(lambda: [counted])
    telemetry.observe_evidence(lambda: [("llm/acme", evidence())])
    page = telemetry.exposition().decode()
    telemetry.close()
    return page


def evidence() -> ClassEvidence:
    effect = Effect(
        speculative_n=9.0,
        control_n=9.0,
        speculative_mean=1.0,
        control_mean=1.5,
        difference=-0.5,
        ci_low=-0.6,
        ci_high=-0.4,
        speed_up=None,
        speed_up_low=None,
        speed_up_high=None,
    )
    return ClassEvidence(
        request_class="code/long",
        speculative=9,
        control=9,
        exploration=0,
        ttft_s=effect,
        tpot_s=effect,
        e2e_s=effect,
        cost=effect,
    )


def operator_page() -> str:
    metrics = Metrics()
    with metrics.reconcile(Kind.MODEL_PAIR):
        metrics.transition("ModelPair", "Normal", "Promoted")
    return metrics.page().decode()


def used_labels(expression: str) -> set[str]:
    matched = re.findall(r"[{,]\s*([a-z_]+)(?:=~|!~|!=|=)", expression)
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    return {*matched, *(label.strip() for labels in grouped for label in labels.split(","))}


def check(expression: str, exposed: dict[str, set[str]]) -> None:
    names = set(METRIC.findall(expression))
    assert names, expression
    assert names <= exposed.keys(), expression
    labels = set().union(*(exposed[name] for name in names))
    assert used_labels(expression) <= labels | ADDED, expression


@pytest.mark.parametrize("expression", dashboard_expressions())
def test_panel_asks_for_what_there_is(expression: str, exposed: dict[str, set[str]]) -> None:
    check(expression, exposed)


def test_alerts_ask_for_what_there_is(
    render: Callable[..., list[JSON]], only: Callable[..., JSON], exposed: dict[str, set[str]]
) -> None:
    objects = render({"monitoring": {"prometheusRule": {"enabled": True}}})
    rules = [rule for group in only(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        check(rule["expr"], exposed)
        summary = rule["annotations"]["summary"]
        shown = set(re.findall(r"\$labels\.(\w+)", summary))
        assert summary.count("{{") == len(shown)
        kept = re.findall(r"by \(([^)]*)\)", rule["expr"])
        assert shown <= ({label.strip() for label in kept[0].split(",")} if kept else {"pod"}), rule["alert"]


def test_alerts_know_reasons_and_statuses_that_exist(
    render: Callable[..., list[JSON]], only: Callable[..., JSON]
) -> None:
    objects = render({"monitoring": {"prometheusRule": {"enabled": True}}})
    text = str(only(objects, "PrometheusRule")) + str(dashboard_expressions())
    reasons = set(re.findall(r'\breason="(\w+)"', text))
    assert reasons
    assert reasons <= {str(reason) for reason in Reason}


def test_variables_are_labels_and_panels_have_their_own_place(exposed: dict[str, set[str]]) -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", str(dashboard_expressions()))) - {"__rate_interval"}
    assert used < names
    assert names == {"datasource", "pair", "class"}
    assert {"pair", "class"} <= exposed["slipstream_requests_total"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = [cell for panel in DASHBOARD["panels"] for cell in cells_of(panel["gridPos"])]
    assert len(cells) == len(set(cells))
    assert all(panel["title"] and panel["description"] for panel in panels())


def cells_of(place: dict[str, int]) -> list[tuple[int, int]]:
    assert place["x"] + place["w"] <= 24
    columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return [(x, y) for x in columns for y in rows]


def test_dashboard_arrives_in_its_config_map_unchanged(
    render: Callable[..., list[JSON]], only: Callable[..., JSON]
) -> None:
    found = only(render({"monitoring": {"dashboard": {"enabled": True}}}), "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["slipstream.json"]) == DASHBOARD


def test_monitors_watch_ports_that_services_have(render: Callable[..., list[JSON]], only: Callable[..., JSON]) -> None:
    objects = render({"monitoring": {"serviceMonitor": {"enabled": True}}})
    for component in ("gateway", "operator"):
        monitor, service = only(objects, "ServiceMonitor", component), only(objects, "Service", component)
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {end["port"] for end in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
    servers = only(objects, "ServiceMonitor", "triton")["spec"]
    assert servers["selector"]["matchLabels"] == {NAME: SERVERS_NAME}
    assert {end["port"] for end in servers["endpoints"]} <= PORTS.keys()
    assert servers["namespaceSelector"] == {"any": True}
