"""The pages on vLLM and on the plugin show what a real server exposes, scraped by a real Prometheus as in a cluster."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from slipstream_tools.up.vllm_server import VllmServer
from slipstream_vllm.counters import DRAFTER, MAX_CLASSES, OTHER, StepCounts

from deploy.generate.dashboards_plugin import plugin
from deploy.generate.dashboards_vllm import vllm
from docs.generate.exposed import labels_of
from tests.support.polling import eventually
from tests.support.ports import lasting_ports
from tests.support.promql import asked
from tests.support.vllm_series import PLUGIN_SERIES, VLLM_SERIES

PAIR = "serving/acme"
PROMPT = "Summarize the call in two sentences.\n\nAgent: Hello, how can I help?\nCustomer: My order is late."
CLASS = "summary"
SERIES = VLLM_SERIES | PLUGIN_SERIES
PREFIXES = ("vllm:", "slipstream_vllm_")
EXPRESSIONS = sorted(
    target["expr"]
    for panel in (*vllm()["panels"], *plugin()["panels"])
    for target in panel.get("targets", ())
    if any(prefix in target["expr"] for prefix in PREFIXES)
)


@pytest.fixture(scope="module")
def answering_server(vllm_server: VllmServer) -> VllmServer:
    """With an answer that had drafts, since some series begin with the first one."""
    body = {"model": "slipstream-embedded", "prompt": PROMPT, "max_tokens": 48, "temperature": 0}
    body["vllm_xargs"] = {"slipstream_class": CLASS}
    httpx.post(f"{vllm_server.url}/v1/completions", json=body, timeout=60.0).raise_for_status()
    return vllm_server


def test_every_series_that_dashboards_show_exists_with_its_labels(answering_server: VllmServer) -> None:
    text = httpx.get(f"{answering_server.url}/metrics", timeout=15.0).text
    exposed = labels_of(list(text_string_to_metric_families(text)))
    assert {name: exposed.get(name) for name in SERIES} == SERIES


def test_recorded_series_are_those_of_the_pages() -> None:
    shown = {selector.name for expression in EXPRESSIONS for selector in asked(expression).selectors}
    assert {name for name in shown if name.startswith(PREFIXES)} == SERIES.keys()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, answering_server: VllmServer) -> Iterator[str]:
    """The address of a Prometheus that scrapes the server, with the labels that service discovery adds."""
    binary = shutil.which("prometheus")
    assert binary, "prometheus is missing: it comes with Debian's package prometheus"
    folder: Path = tmp_path_factory.mktemp("prometheus")
    target = answering_server.url.removeprefix("http://")
    jobs = [
        {
            "job_name": "vllm",
            "static_configs": [{"targets": [target], "labels": {"pair": PAIR, "pod": "acme-0"}}],
        }
    ]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    [port] = lasting_ports(1)
    address = f"127.0.0.1:{port}"
    options = {
        "config.file": folder / "prometheus.yaml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": address,
    }
    with (folder / "log").open("wb") as log:
        arguments = [f"--{name}={value}" for name, value in options.items()]
        process = subprocess.Popen([binary, *arguments], stdout=log, stderr=subprocess.STDOUT)
        try:
            eventually(lambda: _is_ready(f"http://{address}"), "Prometheus is ready")
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30.0)


def _result(prometheus: str, expression: str) -> list[dict[str, Any]]:
    query = expression.replace("$pair", PAIR).replace("$instance", ".*").replace("$__rate_interval", "1m")
    answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}, timeout=15.0).json()
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])


def _is_ready(prometheus: str) -> bool:
    """Whether a query is answered: a starting Prometheus first refuses connections, then answers with 503."""
    try:
        return httpx.get(f"{prometheus}/-/ready", timeout=15.0).is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_panel_has_data_of_the_server(expression: str, prometheus: str, answering_server: VllmServer) -> None:
    expected = {
        "pair": PAIR,
        "instance": answering_server.url.removeprefix("http://"),
        "request_class": CLASS,
        "source": DRAFTER,
    }

    def found() -> list[dict[str, str]]:
        """Without the classes of other tests, which use the server as well."""
        rows = [row["metric"] for row in _result(prometheus, expression)]
        return [labels for labels in rows if labels.get("request_class", CLASS) == CLASS]

    for labels in eventually(found):
        known = labels.keys() & expected.keys()
        assert known
        assert {name: labels[name] for name in known} == {name: expected[name] for name in known}


def test_classes_of_clients_do_not_multiply_the_series() -> None:
    counts = StepCounts()
    for number in range(2 * MAX_CLASSES):
        counts.add(f"class-{number}", 4, DRAFTER, 4, 2)
    rows = {label: drafts for label, _, _, drafts, _, _ in counts.take().drafts}
    assert len(rows) < MAX_CLASSES
    assert rows[OTHER] == 2 * MAX_CLASSES - (len(rows) - 1)
