"""`slipstream gateway --source kubernetes` as a process, with the chart's own kinds, and its errors of one line."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from slipstream_core.environment import pod
from slipstream_core.installation import how_to_install
from slipstream_core.kube.environment import default_kubeconfig, own_namespace
from slipstream_core.manifest.reports import REPORT_SELECTOR, read_report
from slipstream_tools.cli import main

from tests.gateway.pair_manifest import chat
from tests.support.gateway_process import Process
from tests.support.kube import KubeApiServer
from tests.support.manifests import arm, external, pair_yaml
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import lasting_ports

WORKER_MIB = 150


def _reports(kube: KubeApiServer, namespace: str) -> list[Any]:
    folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return [read_report(lease) for lease in kube.client().items(folder, labelSelector=REPORT_SELECTOR)]


def test_every_worker_watches_and_reports_and_obeys_kubectl_within_the_memory_of_a_worker(
    kube: KubeApiServer, crds: None, namespace: str, openai_server: Any, tmp_path: Path, exit_stack: ExitStack
) -> None:
    engine = external(arm(openai_server().url), arm(openai_server().url))
    objects = pair_yaml(engine, name="acme", policy=", allowClientMode: true, holdBackShare: 0")
    kube.client().apply_yaml(objects, namespace=namespace)
    options = ["--namespace", namespace, "--report-namespace", namespace]
    options += ["--kubeconfig", str(kube.kubeconfig()), "--snapshot", str(tmp_path / "snapshot.json")]
    options += ["--conformance", "off"]  # the scripted servers cannot score answers
    process = Process(None, *lasting_ports(1), *options, log=tmp_path / "gateway.log", workers=2)
    exit_stack.callback(process.stop)
    process.wait_live()
    ready = httpx.get(f"{process.url}/health/ready", timeout=PATIENCE_S)
    assert (ready.status_code, ready.json()["configuration"]) == (200, "cluster")
    eventually(lambda: len(_reports(kube, namespace)) == 2, "both workers report")
    workers = psutil.Process(process.child.pid).children(recursive=True)
    largest = max(worker.memory_info().rss for worker in workers) / 2**20
    assert largest < WORKER_MIB
    print(f"largest worker {largest:.0f} MiB")

    def decision() -> str:
        headers = {"x-slipstream-mode": "speculative"}  # a new connection each time, so that both workers get some
        reply = httpx.post(f"{process.url}/v1/chat/completions", json=chat("tokens=1"), headers=headers)
        assert reply.status_code == 200, reply.text
        return reply.headers["x-slipstream-reason"]

    assert decision() == "client_asked"
    kube.kubectl(
        "patch", "modelpair", "acme", "--type", "merge", "-p", '{"spec":{"killSwitch":true}}', namespace=namespace
    )
    key = f"{namespace}/ModelPair/acme"
    eventually(
        lambda: all(report.generation_of(key) == 2 for report in _reports(kube, namespace)), "both have confirmed"
    )
    assert {decision() for _ in range(20)} == {"kill_switch"}

    process.child.send_signal(signal.SIGTERM)
    assert process.child.wait(PATIENCE_S) == 0
    assert _reports(kube, namespace) == []
    assert (tmp_path / "snapshot.json").exists()


def test_a_fallback_that_is_no_manifest_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fallback = tmp_path / "fallback.yaml"
    fallback.write_text("kind: Nonsense\n")
    assert main(["gateway", "--source", "kubernetes", "-f", str(fallback)]) != 0
    assert "kind: must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "-f FILE is required"),
        (["-f", "pair.yaml", "--namespace", "prod"], "--namespace is for --source kubernetes"),
        (["-f", "pair.yaml", "--report-namespace", "prod"], "--report-namespace is for --source kubernetes"),
        (["--source", "kubernetes", "--endpoint", "a=http://b"], "--endpoint is for a manifest file"),
        (["--source", "kubernetes", "--namespace", "No_Such"], "no namespace has the name 'No_Such'"),
        (["--source", "kubernetes", "--kubeconfig", "/none/config"], "no kubeconfig file /none/config"),
    ],
)
def test_options_that_do_not_fit_are_one_clear_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gateway", *options]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_the_client_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert main(["gateway", "--source", "kubernetes"]) == 1
    assert how_to_install("kubernetes") in capsys.readouterr().err


def test_a_pod_is_known_by_its_environment() -> None:
    environ = {
        "POD_NAME": "gateway-0",
        "POD_UID": "1-2",
        "POD_NAMESPACE": "prod",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    }
    found = pod(environ)
    assert found is not None
    assert (found.name, found.uid) == ("gateway-0", "1-2")
    assert pod({"POD_NAME": "gateway-0"}) is None
    assert own_namespace(environ) == "prod"
    assert default_kubeconfig(environ) is None
    assert default_kubeconfig({"KUBECONFIG": "/a/config"}) == Path("/a/config")
