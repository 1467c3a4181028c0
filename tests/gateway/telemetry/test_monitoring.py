"""Dashboards and alerts ask for metrics, labels and values that gateway and operator really have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from slipstream_core.manifest.status import ConditionStatus, ConditionType
from slipstream_core.types import Arm, Reason
from slipstream_gateway.request import causes
from slipstream_gateway.request.candidates import Result
from slipstream_gateway.upstreams.pool import Circuit
from slipstream_operator.cluster.ownership import REFUSED_REASON
from slipstream_operator.reconcile.pods import PodReason
from slipstream_operator.reconcile.reasons import Reason as ConditionReason

from deploy.generate.__main__ import ALERTS, ROOT, dashboards, files
from docs.generate.exposed import all_series
from tests.support.manifests import JSON
from tests.support.promql import faults
from tests.support.vllm_series import series_in_a_cluster

PAGES = dashboards()
RULES: list[JSON] = [
    rule for group in yaml.safe_load((ROOT / ALERTS).read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
# The values of labels that are closed sets.
VALUES = {
    "arm": {str(arm) for arm in Arm},
    "reason": {str(reason) for reason in Reason},
    "status": {"ok", *causes.STATUSES},
    "error_type": {*causes.STATUSES},
    "result": {*(str(result) for result in Result), "allowed", "refused"},
    "statistic": {"ratio", "difference", "ci_low", "ci_high"},
    "outcome": {"ok", "error"},
    "by": {"redis", "local"},
    "state": {str(circuit) for circuit in Circuit},
}
OPERATOR_VALUES = {
    "outcome": VALUES["outcome"],
    "condition": {str(type) for type in ConditionType},
    "status": set(get_args(ConditionStatus)),
    "reason": {*(str(reason) for reason in chain(ConditionReason, PodReason)), REFUSED_REASON},
}


def values_of(expression: str) -> dict[str, set[str]]:
    """The closed sets of whoever exposes what is asked for: both have labels of these names."""
    return OPERATOR_VALUES if "slipstream_operator_" in expression else VALUES


def panels() -> Iterator[Any]:
    for page in PAGES.values():
        for panel in page["panels"]:
            if panel["type"] != "row":
                yield pytest.param(panel, id=f"{page['title']}: {panel['title']}")


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    return all_series() | series_in_a_cluster()


@pytest.mark.parametrize("panel", list(panels()))
def test_panel_asks_for_what_there_is(panel: JSON, series: dict[str, set[str]]) -> None:
    assert panel["description"]
    for target in panel["targets"]:
        assert list(faults(target["expr"], series, values_of(target["expr"]))) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_asks_for_what_there_is(rule: JSON, series: dict[str, set[str]]) -> None:
    assert list(faults(rule["expr"], series, values_of(rule["expr"]))) == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(slipstream_request_total[5m])", "no metric is called slipstream_request_total"),
        ('slipstream_requests_total{model="x"}', "slipstream_requests_total has no label model"),
        ('slipstream_requests_total{arm=~"plain|speculativ"}', "arm of slipstream_requests_total is never speculativ"),
        ("sum by (reson) (slipstream_requests_total)", "nothing here has a label reson"),
        ("slipstream_config_connected / on (host) slipstream_store_connected", "nothing here has a label host"),
    ],
)
def test_a_wrong_name_is_caught(expression: str, fault: str, series: dict[str, set[str]]) -> None:
    assert list(faults(expression, series, VALUES)) == [fault]


def test_what_is_no_promql_is_caught(series: dict[str, set[str]]) -> None:
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        list(faults("sum by (arm (slipstream_requests_total)", series, VALUES))


@pytest.mark.parametrize("page", list(PAGES.values()), ids=lambda page: page["uid"])
def test_page_has_its_variables_and_no_panel_covers_another(page: JSON, series: dict[str, set[str]]) -> None:
    names = {variable["name"]: variable for variable in page["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", json.dumps([panel.get("targets") for panel in page["panels"]])))
    assert used - {"__rate_interval"} <= names.keys()
    for variable in names.values():
        asks = re.fullmatch(r"label_values\((.*), (\w+)\)", str(variable.get("definition", "")))
        if asks:
            assert list(faults(asks[1], series, VALUES)) == []
            assert asks[2] in series[asks[1].split("{")[0]]
    cells = [cell for panel in page["panels"] for cell in cells_of(panel["gridPos"])]
    assert len(cells) == len(set(cells))
    ids = [panel["id"] for panel in page["panels"]]
    assert len(ids) == len(set(ids))


def cells_of(place: dict[str, int]) -> list[tuple[int, int]]:
    assert place["x"] + place["w"] <= 24
    return list(product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])))


def test_alerts_say_what_is_wrong_and_where_it_is_written_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    headings = {line.removeprefix("## ").lower() for line in runbook().splitlines() if line.startswith("## ")}
    for rule in RULES:
        about = rule["annotations"]
        assert about["summary"].endswith(".")
        assert about["description"].endswith(".")
        assert rule["labels"]["severity"] in ("critical", "warning")
        page, _, anchor = about["runbook_url"].partition("#")
        assert page == "docs/alerts.md"
        assert anchor == rule["alert"].lower()
        assert anchor in headings


def runbook() -> str:
    return (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", list(files()), ids=str)
def test_what_is_made_is_what_is_committed(path: Path) -> None:
    """`make crds` makes them."""
    assert (ROOT / path).read_text(encoding="utf-8") == files()[path]


@pytest.mark.integration
def test_prometheus_takes_the_rules_and_they_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: it comes with Debian's package prometheus"
    cases = ROOT / "deploy" / "alerts" / "tests.yaml"
    command = [promtool, "test", "rules", str(cases)]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
