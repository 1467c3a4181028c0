"""`slipstream kill` and `unkill` as a person runs them, against a real API server; gateways are their reports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from slipstream_gateway.manifest.reports import GatewayReport, object_key, report_lease
from slipstream_gateway.up.processes import Child

from tests.kube import KubeApiServer

SLIPSTREAM = Path(sys.executable).parent / "slipstream"
LIMIT_S = 40
OBJECTS = """\
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {name: acme}
spec:
  model: acme
  engine: {kind: external, arms: {plain: {protocol: openai, endpoints: ["http://127.0.0.1:9"], model: acme}}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {name: careful}
spec: {pair: acme}
"""
NARROW_ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: killer}
rules:
- {apiGroups: [slipstream.dev], resources: [modelpairs, speculationpolicies], verbs: [patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: killer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: killer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: gateway}]
"""


class Cluster:
    """A namespace with a pair and its policy, and the gateways that report there."""

    def __init__(self, kube: KubeApiServer, namespace: str, user: str = "admin") -> None:
        self.kube, self.namespace = kube, namespace
        self.user = user
        self.base = f"/apis/slipstream.dev/v1alpha1/namespaces/{namespace}"
        self.running: list[subprocess.Popen[str]] = []
        kube.client().apply_yaml(OBJECTS, namespace=namespace)

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """`slipstream COMMAND`, not waited for."""
        environment = {**os.environ, "KUBECONFIG": str(self.kube.kubeconfig(self.user, namespace=self.namespace))}
        process = subprocess.Popen(
            [str(SLIPSTREAM), command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.running.append(process)
        return process

    def run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        return ended(self.start(command, *arguments))

    def spec(self, path: str = "modelpairs/acme") -> dict[str, Any]:
        spec: dict[str, Any] = self.kube.client().get(f"{self.base}/{path}")["spec"]
        return spec

    def report(
        self,
        name: str,
        generation: int,
        *,
        kind: str = "ModelPair",
        target: str = "acme",
        age_s: float = 0,
        watches: str | None = None,
    ) -> None:
        """A gateway says that it goes by `generation`, `age_s` ago."""
        report = GatewayReport(
            name=name,
            namespaces=(watches or self.namespace,),
            applied={object_key(self.namespace, kind, target): generation},
            renewed=datetime.now(UTC) - timedelta(seconds=age_s),
        )
        self.kube.client().apply_yaml([report_lease(report, namespace=self.namespace)])

    def leases(self) -> list[dict[str, Any]]:
        return self.kube.client().items(self._leases)

    def leave(self, name: str) -> None:
        self.kube.client().delete(f"{self._leases}/{name}")

    @property
    def _leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None, namespace: str) -> Iterator[Cluster]:
    cluster = Cluster(kube, namespace)
    yield cluster
    for process in cluster.running:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    output, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, output, errors


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_kill_waits_until_every_gateway_has_confirmed(cluster: Cluster) -> None:
    cluster.report("gateway-a", 1)
    cluster.report("gateway-b", 1)
    process = cluster.start("kill", "modelpair/acme")
    assert first_line(process) == f"ModelPair {cluster.namespace}/acme: kill switch set (generation 2)\n"
    assert cluster.spec()["killSwitch"] is True
    cluster.report("gateway-b", 2)
    assert re.fullmatch(r"  gateway-b  \d+ ms\n", first_line(process))
    assert process.poll() is None
    cluster.report("gateway-a", 2)
    code, output, errors = ended(process)
    assert (code, errors) == (0, "")
    assert re.fullmatch(
        r"  gateway-a  (\d+) ms\n2 of 2 gateways go by it, \1 ms after the API server took it\n", output
    )


def test_real_gateway_confirms_within_a_moment(
    cluster: Cluster, free_ports: Callable[[int], list[int]], tmp_path: Path, until: Callable[..., Any]
) -> None:
    [port] = free_ports(1)
    kubeconfig = str(cluster.kube.kubeconfig(namespace=cluster.namespace))
    options = ("--namespace", cluster.namespace, "--report-namespace", cluster.namespace, "--port", str(port))
    gateway = Child(
        name="the gateway",
        command=[str(SLIPSTREAM), "gateway", "--source", "kubernetes", "--kubeconfig", kubeconfig, *options],
        log_path=tmp_path / "gateway.log",
        env=dict(os.environ),
    )
    try:
        until(cluster.leases, "a report", 30)
        for command, generation in (("kill", 2), ("unkill", 3)):
            code, output, errors = cluster.run(command, "modelpair/acme")
            assert (code, errors) == (0, ""), gateway.log_tail()
            assert f"(generation {generation})" in output
            [milliseconds] = re.findall(r"1 of 1 gateways go by it, (\d+) ms after", output)
            assert int(milliseconds) < 5000
    finally:
        gateway.stop(timeout_s=10)


def test_gateway_that_does_not_confirm_is_named(cluster: Cluster) -> None:
    cluster.report("gateway-a", 2)
    cluster.report("gateway-b", 1)
    code, _, errors = cluster.run("kill", "mp/acme", "--timeout", "1.5")
    assert code == 1
    assert errors == "1 of 2 gateways confirmed within 1.5 s; not gateway-b\n"
    assert cluster.spec()["killSwitch"] is True


def test_silent_gateways_and_those_of_other_namespaces_are_not_waited_for(cluster: Cluster) -> None:
    cluster.report("gateway-a", 2)
    cluster.report("long-gone", 1, age_s=60)
    cluster.report("elsewhere", 1, watches="another-namespace")
    code, output, _ = cluster.run("kill", "modelpairs.slipstream.dev/acme")
    assert code == 0
    assert "1 of 1 gateways go by it" in output
    assert "long-gone" not in output


def test_gateway_that_leaves_meanwhile_is_not_waited_for(cluster: Cluster) -> None:
    cluster.report("gateway-a", 2)
    cluster.report("gateway-b", 1)
    process = cluster.start("kill", "modelpair/acme")
    assert "kill switch set" in first_line(process)
    cluster.leave("gateway-b")
    code, output, _ = ended(process)
    assert code == 0
    assert "1 of 1 gateways" in output


def test_kill_without_any_gateway_says_that_nobody_confirms(cluster: Cluster) -> None:
    code, output, errors = cluster.run("kill", "modelpair/acme")
    assert code == 3
    assert "kill switch set" in output
    assert "the whole cluster has no report" in errors
    assert cluster.spec()["killSwitch"] is True


def test_policy_is_killed_by_its_own_generation(cluster: Cluster) -> None:
    cluster.report("gateway-a", 2, kind="SpeculationPolicy", target="careful")
    code, output, _ = cluster.run("kill", "sp/careful")
    assert code == 0
    assert output.startswith(f"SpeculationPolicy {cluster.namespace}/careful: kill switch set (generation 2)\n")
    assert cluster.spec("speculationpolicies/careful") == {"pair": "acme", "killSwitch": True}


def test_unkill_removes_the_field_and_names_what_still_kills(cluster: Cluster) -> None:
    for generation, target in ((2, "mp/acme"), (3, "mp/acme")):
        cluster.report("gateway-a", generation)
        code, output, _ = cluster.run("kill" if generation == 2 else "unkill", target)
        assert code == 0
    assert "kill switch removed (generation 3)" in output
    assert "still killed" not in output
    assert "killSwitch" not in cluster.spec()

    cluster.kube.client().patch(f"{cluster.base}/speculationpolicies/careful", {"spec": {"killSwitch": True}})
    cluster.run("kill", "mp/acme", "--timeout", "0.1")
    cluster.report("gateway-a", 5)
    code, output, _ = cluster.run("unkill", "mp/acme")
    assert code == 0
    assert output.endswith(f"still killed by SpeculationPolicy {cluster.namespace}/careful\n")


def test_who_may_only_patch_and_see_one_namespace_can_kill_there(cluster: Cluster) -> None:
    cluster.user = "gateway"
    code, _, errors = cluster.run("kill", "modelpair/acme")
    assert code == 1
    assert f"kill switch of ModelPair {cluster.namespace}/acme is as it was: " in errors
    assert 'User "gateway" cannot patch resource "modelpairs"' in errors
    assert "killSwitch" not in cluster.spec()

    cluster.kube.client().apply_yaml(NARROW_ROLE, namespace=cluster.namespace)
    cluster.report("gateway-a", 2)
    code, output, _ = cluster.run("kill", "modelpair/acme")
    assert code == 0
    assert "1 of 1 gateways" in output
    code, _, errors = cluster.run("unkill", "modelpair/acme", "--timeout", "0.1")
    assert "whether another kill switch holds the pair could not be read" in errors
    assert "killSwitch" not in cluster.spec()


def test_reports_that_may_not_be_read_leave_the_switch_set(cluster: Cluster) -> None:
    role = NARROW_ROLE.replace("resources: [leases]", "resources: [events]")
    cluster.kube.client().apply_yaml(role, namespace=cluster.namespace)
    cluster.user = "gateway"
    code, output, errors = cluster.run("kill", "modelpair/acme")
    assert code == 1
    assert "kill switch set" in output
    assert (
        "the change is made; whether gateways go by it is not known: leases.coordination.k8s.io is forbidden" in errors
    )
    assert cluster.spec()["killSwitch"] is True


def test_object_that_is_not_there_is_named(cluster: Cluster, kube: KubeApiServer) -> None:
    code, _, errors = cluster.run("kill", "modelpair/absent")
    assert code == 1
    assert errors == f"slipstream: error: {kube.url}: there is no ModelPair {cluster.namespace}/absent\n"


@pytest.mark.parametrize("reference", ["acme", "pod/acme", "modelpair/", "modelpair/a/b"])
def test_reference_that_cannot_be_read_is_a_wrong_use(cluster: Cluster, reference: str) -> None:
    code, _, errors = cluster.run("kill", reference)
    assert code == 2
    assert f"expected modelpair/NAME or speculationpolicy/NAME, got '{reference}'" in errors


def test_kubeconfig_that_leads_nowhere_is_said(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    def errors_with(path: Path, text: str | None) -> str:
        if text is not None:
            path.write_text(text)
        command = [str(SLIPSTREAM), "kill", "mp/x", "--kubeconfig", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert f"no kubeconfig at {tmp_path / 'absent'}" in errors_with(tmp_path / "absent", None)
    assert "cannot be used" in errors_with(tmp_path / "empty", "{}")
    [port] = free_ports(1)
    config = f"""\
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
"""
    assert f"the API server http://127.0.0.1:{port} cannot be reached" in errors_with(tmp_path / "config", config)


def test_confirmations_are_seen_across_a_restart_of_the_api_server(
    tmp_path: Path, install_crds: Callable[[KubeApiServer], None]
) -> None:
    with KubeApiServer(tmp_path / "kube") as own:
        namespace = own.namespace("restarted")
        kubeconfig = str(own.kubeconfig(namespace=namespace))
        command = [str(SLIPSTREAM), "kill", "mp/acme", "--kubeconfig", kubeconfig]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert "there is no kind ModelPair: are the CRDs installed?" in done.stderr

        install_crds(own)
        cluster = Cluster(own, namespace)
        cluster.report("gateway-a", 1)
        process = cluster.start("kill", "mp/acme")
        assert "kill switch set" in first_line(process)
        own.restart()
        cluster.report("gateway-a", 2)
        code, output, _ = ended(process)
        assert code == 0
        assert "1 of 1 gateways" in output
