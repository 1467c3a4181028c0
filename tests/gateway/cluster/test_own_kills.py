"""The break-glass of a gateway in a cluster: a kill at the gateway itself, while the API server hangs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.manifest.reports import read_report
from slipstream_core.settings import ClusterSettings, GatewaySettings
from slipstream_tools.cli import main

from tests.gateway.pair_manifest import chat
from tests.support.browser import chromium
from tests.support.gateway_process import Process
from tests.support.polling import PATIENCE_S, eventually

pytestmark = pytest.mark.integration


class Served:
    """Two gateways on one port that serve the pair `acme` of `space`; `admin` is the first one's admin URL."""

    def __init__(self, space: Any, process: Process) -> None:
        self.space = space
        self.process = process
        self.admin = process.admin_urls[0]

    def turn(self, command: str, *options: str) -> int:
        gateways = [part for url in self.process.admin_urls for part in ("--gateway", url)]
        return main([command, "modelpair/acme", "-n", self.space.name, *gateways, *options])

    def reasons(self) -> set[str]:
        """Of requests over connections of their own, so that both answer."""
        url, headers = f"{self.process.url}/v1/chat/completions", {"x-slipstream-mode": "speculative"}
        answers = [httpx.post(url, json=chat("tokens=1"), headers=headers, timeout=PATIENCE_S) for _ in range(20)]
        return {answer.headers["x-slipstream-reason"] for answer in answers}

    def reported(self) -> list[list[str]]:
        """The reasons for which servers may not speculate, of each worker's report to the operator."""
        reports = [read_report(lease) for lease in self.space.reports()]
        key = f"{self.space.name}/ModelPair/acme"
        return [[one.reason for one in report.withheld.get(key, ())] for report in reports if report is not None]

    def pair(self) -> dict[str, Any]:
        headers = {"accept": "application/json"}
        shown = httpx.get(f"{self.admin}/admin/events", headers=headers, timeout=PATIENCE_S).json()
        self.history = shown["history"]
        return dict(shown["pairs"][0])


@pytest.fixture
def served(
    outages: Any, new_space: Any, openai_server: Any, free_ports: Callable[[int], list[int]], tmp_path: Path
) -> Iterator[Served]:
    space = new_space(outages)
    arm = {"protocol": "openai", "endpoints": [openai_server().url], "model": "up"}
    space.pair("acme", engine={"kind": "external", "arms": {"plain": arm, "speculative": arm}})
    space.policy("acme", allowClientMode=True)
    options = ["--namespace", space.name, "--report-namespace", space.name, "--kubeconfig", str(outages.kubeconfig())]
    options += ["--audit-log", str(tmp_path / "audit.jsonl"), "--conformance", "off", "--drain", "1"]
    process = Process(None, free_ports(1)[0], *options, log=tmp_path / "gateway.log", workers=2)
    process.wait_live()
    started = Served(space, process)
    eventually(lambda: started.reported() == [[], []], "both gateways")
    eventually(lambda: started.reasons() == {"client_asked"}, "the pair")
    yield started
    outages.resume()
    process.stop()


def test_a_kill_needs_no_api_server_and_shows_where_it_differs_from_the_cluster(
    served: Served, outages: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outages.halt()
    assert served.turn("kill") == 0
    said = capsys.readouterr().out
    assert f"{served.admin}: killed in " in said
    assert said.count(" ms (this gateway alone; not stored: ends with a restart)") == 2
    assert served.reasons() == {"kill_switch"}
    pair = served.pair()
    assert (pair["killed"], pair["killed_by_cluster"], bool(pair["own_kill"])) == (True, False, True)
    assert served.history[0]["rule"] == "Kill"
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{served.admin}/console")
        page.locator("#kill-state", has_text="not in the cluster: it ends with a restart").wait_for()
        assert page.inner_text("#kill-command code").endswith(f"acme -n {served.space.name} --gateway {served.admin}")

    outages.resume()
    eventually(lambda: served.reported() == [["kill_switch"]] * 2, "the kill in both reports")
    served.space.patch("ModelPair", "acme", killSwitch=True)
    eventually(lambda: served.pair()["killed_by_cluster"], "the cluster's kill")
    assert served.turn("unkill") == 0
    assert "the cluster's objects kill the pair as well" in capsys.readouterr().out
    assert served.reasons() == {"kill_switch"}
    served.space.patch("ModelPair", "acme", killSwitch=None)
    eventually(lambda: served.reasons() == {"client_asked"}, "speculation again")
    eventually(lambda: served.reported() == [[]] * 2, "reports without the kill")
    eventually(lambda: _turned(tmp_path / "audit.jsonl") == ["kill"] * 2 + ["unkill"] * 2, "the audit log")


def _turned(audit_log: Path) -> list[str]:
    """The turns by a person; the events without a reason are those of the configuration."""
    lines = [json.loads(line) for line in audit_log.read_text().splitlines()]
    return [line["event"] for line in lines if line["event"] in ("kill", "unkill") and "reason" in line]


def test_a_gateway_that_does_not_answer_is_named(
    served: Served, free_ports: Callable[[int], list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it speaks another protocol
        threading.Thread(target=lambda: listener.accept()[0].sendall(b"\x00\x00\x06\x04\r\n"), daemon=True).start()
        other = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert served.turn("kill", "--gateway", nobody, "--gateway", other) == 1
    said = capsys.readouterr()
    assert f"{served.admin}: killed in " in said.out
    assert f"{nobody}: not killed: " in said.err
    assert f"{other}: not killed: " in said.err
    assert main(["kill", "modelpair/other", "-n", served.space.name, "--gateway", served.admin]) == 1
    assert f"400: There is no pair '{served.space.name}/other'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speculationpolicy/acme", "--gateway", "http://127.0.0.1:1"], "expected modelpair/NAME"),
        (["modelpair/acme", "--gateway", "127.0.0.1:1"], "expected http://HOST:PORT"),
        (["modelpair/acme", "--gateway", "http://127.0.0.1:80a"], "expected http://HOST:PORT"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kill", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_without_keys_and_without_an_admin_port_there_is_no_break_glass(space: Any, serve: Any) -> None:
    space.pair("acme")
    cluster = ClusterSettings(
        kubeconfig=space.kubeconfig("admin"), namespaces=(space.name,), report_namespace=space.name
    )
    url = serve(GatewaySettings(cluster=cluster)).url
    answer = httpx.post(
        f"{url}/admin/gateway-kills/{space.name}/acme",
        json={"by": "Ada"}, headers={"x-slipstream-console": "1"}, timeout=PATIENCE_S,
    )  # fmt: skip
    assert answer.status_code == 404
    assert "Invalid URL" in answer.json()["error"]["message"]
