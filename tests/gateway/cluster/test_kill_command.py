"""`slipstream kill` and `unkill` as a person runs them, against a real API server; gateways are their reports."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from slipstream_core.manifest.reports import EXPIRES_S, RENEW_S, GatewayReport, applied_key, object_key, report_lease
from slipstream_tools.cli import main

from tests.support.command import SCRIPT
from tests.support.gateway_process import Process, workers_of
from tests.support.kube import KubeApiServer
from tests.support.polling import eventually
from tests.support.speed import SLOWNESS

pytestmark = pytest.mark.integration

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
            [SCRIPT, command, *arguments],
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

    def uid(self, path: str = "modelpairs/acme") -> str:
        return str(self.kube.client().get(f"{self.base}/{path}")["metadata"]["uid"])

    def report(
        self,
        name: str,
        generation: int,
        *,
        path: str = "modelpairs/acme",
        uid: str | None = None,
        age_s: float = 0,
        watches: str | None = None,
    ) -> None:
        """A gateway says that it goes by `generation` of the object as it is there, or of `uid`, `age_s` ago by its own
        clock. With an empty `uid`, as gateways did that knew of none."""
        plural, _, target = path.partition("/")
        key = object_key(self.namespace, {"modelpairs": "ModelPair"}.get(plural, "SpeculationPolicy"), target)
        report = GatewayReport(
            name=name,
            namespaces=(watches or self.namespace,),
            applied={key if uid == "" else applied_key(key, uid or self.uid(path)): generation},
            renewed=datetime.now(UTC) - timedelta(seconds=age_s),
        )
        self.kube.client().apply_yaml([report_lease(report, namespace=self.namespace)])

    @contextmanager
    def renewing(self, name: str, generation: int, *, age_s: float) -> Iterator[None]:
        """A gateway whose clock is `age_s` behind, and which renews its report every half second."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(0.5):
                self.report(name, generation, age_s=age_s)

        thread = threading.Thread(target=renew)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

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
        r"  gateway-a  (\d+) ms\n2 of 2 gateways have applied it, \1 ms after the API server accepted it\n", output
    )


@pytest.fixture
def gateway(
    cluster: Cluster, free_ports: Callable[[int], list[int]], tmp_path: Path, exit_stack: ExitStack
) -> Callable[..., Process]:
    """Starts real gateways."""

    def start(*arguments: str, **more: Any) -> Process:
        kubeconfig = ("--kubeconfig", str(cluster.kube.kubeconfig(namespace=cluster.namespace)))
        options = ("--namespace", cluster.namespace, "--report-namespace", cluster.namespace, *arguments)
        process = Process(None, free_ports(1)[0], *kubeconfig, *options, log=tmp_path / "gateway.log", **more)
        exit_stack.callback(process.stop)
        return process

    return start


def test_real_gateway_confirms_within_a_moment(cluster: Cluster, gateway: Callable[..., Process]) -> None:
    process = gateway()
    eventually(cluster.leases, "a report")
    for command, generation in (("kill", 2), ("unkill", 3)):
        code, output, errors = cluster.run(command, "modelpair/acme")
        assert (code, errors) == (0, ""), process.log()
        assert f"(generation {generation})" in output
        [milliseconds] = re.findall(r"1 of 1 gateways have applied it, (\d+) ms after", output)
        assert int(milliseconds) < 5000 * SLOWNESS


def test_worker_that_takes_a_dead_ones_place_goes_on_with_its_report(
    cluster: Cluster, gateway: Callable[..., Process]
) -> None:
    process = gateway(workers=2)

    def renewed() -> dict[str, str]:
        return {lease["metadata"]["name"]: lease["spec"]["renewTime"] for lease in cluster.leases()}

    eventually(lambda: len(cluster.leases()) == 2, "both workers report", within_s=90)
    before, reports = workers_of(process), renewed()
    before[0].kill()
    eventually(lambda: set(workers_of(process)) - set(before) and len(workers_of(process)) == 2, "another worker")
    eventually(
        lambda: all(renewed()[name] > at for name, at in reports.items()), "both reports are renewed", within_s=90
    )
    code, output, errors = cluster.run("kill", "modelpair/acme")
    assert (code, errors) == (0, ""), process.log()
    assert "2 of 2 gateways have applied it" in output
    assert renewed().keys() == reports.keys()
    process.stop()
    assert cluster.leases() == []


def test_gateway_that_does_not_confirm_is_named(cluster: Cluster) -> None:
    cluster.report("gateway-a", 2)
    cluster.report("gateway-b", 1)
    code, _, errors = cluster.run("kill", "mp/acme", "--timeout", "4")
    assert code == 1
    assert errors == "1 of 2 gateways confirmed within 4 s; missing: gateway-b\n"
    assert cluster.spec()["killSwitch"] is True


def test_gateways_of_other_namespaces_are_not_waited_for(cluster: Cluster) -> None:
    cluster.report("gateway-a", 2)
    cluster.report("elsewhere", 1, watches="another-namespace")
    code, output, errors = cluster.run("kill", "modelpairs.slipstream.dev/acme")
    assert (code, errors) == (0, "")
    assert "1 of 1 gateways have applied it" in output


def test_gateway_that_has_fallen_silent_is_named_and_no_success(cluster: Cluster) -> None:
    """It may have lost the API server, and serve what it knew."""
    cluster.report("gateway-a", 2)
    cluster.report("cut-off", 1, age_s=50)
    started_s = time.monotonic()
    code, output, errors = cluster.run("kill", "mp/acme")
    assert code == 4
    assert RENEW_S < time.monotonic() - started_s < EXPIRES_S  # listened to for as long as a living one needs
    assert "1 of 2 gateways have applied it" in output
    assert re.fullmatch(
        r"cut-off has not confirmed: last seen \d\d s ago, it may still serve the old configuration \(if it no longer "
        rf"exists: kubectl delete lease cut-off --namespace {cluster.namespace}\)\n",
        errors,
    )


def test_gateway_whose_clock_is_behind_is_alive_while_it_renews(cluster: Cluster) -> None:
    cluster.report("gateway-a", 2)
    cluster.report("slow-clock", 1, age_s=60)
    with cluster.renewing("slow-clock", 1, age_s=60):
        code, _, errors = cluster.run("kill", "mp/acme", "--timeout", "10")
        assert (code, errors) == (1, "1 of 2 gateways confirmed within 10 s; missing: slow-clock\n")
    with cluster.renewing("slow-clock", 2, age_s=60):
        code, output, errors = cluster.run("kill", "mp/acme")
    assert (code, errors) == (0, "")
    assert "2 of 2 gateways have applied it" in output


def test_pair_that_was_made_again_is_confirmed_by_no_report_of_its_namesake(cluster: Cluster) -> None:
    """The new one begins with generation 1, and the reports have a higher one."""
    namesake = cluster.uid()
    cluster.kube.client().delete(f"{cluster.base}/modelpairs/acme")
    cluster.kube.client().apply_yaml(OBJECTS, namespace=cluster.namespace)
    cluster.report("stopped", 7, uid=namesake)
    cluster.report("older-version", 7, uid="")
    code, _, errors = cluster.run("kill", "mp/acme", "--timeout", "4")
    assert (code, errors) == (1, "0 of 2 gateways confirmed within 4 s; missing: older-version, stopped\n")
    cluster.report("stopped", 2)
    cluster.report("older-version", 2)
    code, output, _ = cluster.run("kill", "mp/acme")
    assert code == 0
    assert "2 of 2 gateways" in output


def test_kill_of_a_pair_that_was_refused_says_who_serves_the_model(cluster: Cluster) -> None:
    message = "spec.model: ModelPair other already serves the model 'acme'"
    taken = {
        "type": "ResolvedRefs",
        "status": "False",
        "reason": "ModelNameTaken",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    cluster.kube.client().patch_status(f"{cluster.base}/modelpairs/acme", {"conditions": [taken]})
    cluster.report("gateway-a", 2)
    code, _, errors = cluster.run("kill", "mp/acme")
    assert code == 0
    assert errors == (
        f"ModelPair {cluster.namespace}/acme is refused (ModelNameTaken: {message}), "
        "so this kill does not stop a model that another object serves\n"
    )
    server_is_starting = taken | {"type": "Ready", "reason": "NoReadyReplicas"}
    cluster.kube.client().patch_status(f"{cluster.base}/modelpairs/acme", {"conditions": [server_is_starting]})
    assert cluster.run("kill", "mp/acme") == (0, ANY, "")


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
    cluster.report("gateway-a", 2, path="speculationpolicies/careful")
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
    assert f"kill switch of ModelPair {cluster.namespace}/acme is unchanged: " in errors
    assert 'User "gateway" cannot patch resource "modelpairs"' in errors
    assert "killSwitch" not in cluster.spec()

    cluster.kube.client().apply_yaml(NARROW_ROLE, namespace=cluster.namespace)
    cluster.report("gateway-a", 2)
    code, output, errors = cluster.run("kill", "modelpair/acme")
    assert code == 0
    assert "1 of 1 gateways" in output
    assert f"only namespace {cluster.namespace} was searched for gateways" in errors
    assert cluster.run("kill", "modelpair/acme", "--report-namespace", cluster.namespace) == (0, ANY, "")
    cluster.report("gateway-a", 3)  # there from the start: only then are other objects read, however slow the machine
    code, _, errors = cluster.run("unkill", "modelpair/acme")
    assert code == 0
    assert "whether another kill switch holds the pair could not be read" in errors
    assert "killSwitch" not in cluster.spec()


def test_reports_that_may_not_be_read_leave_the_switch_set(cluster: Cluster) -> None:
    role = NARROW_ROLE.replace("resources: [leases]", "resources: [events]")
    cluster.kube.client().apply_yaml(role, namespace=cluster.namespace)
    cluster.user = "gateway"
    code, output, errors = cluster.run("kill", "modelpair/acme")
    assert code == 1
    assert "kill switch set" in output
    unknown = "the change is made, but it is unknown whether gateways have applied it"
    assert f"{unknown}: leases.coordination.k8s.io is forbidden" in errors
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


def kubeconfig_text(server: str, **cluster: str) -> str:
    return json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
    )


@pytest.mark.parametrize("command", ["kill", "unkill"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no cluster is configured: there is no kubeconfig at {path}; --gateway URL names a gateway itself"),
        ("{}", "the kubeconfig {path} cannot be used: "),
        ("a: [b\n", "the kubeconfig {path} cannot be used: while parsing a flow sequence"),
        ("- 1\n", "the kubeconfig {path} cannot be used: "),
        ("clusters: 5\ncontexts: 3\ncurrent-context: x\n", "the kubeconfig {path} cannot be used: "),
        (kubeconfig_text(""), "the kubeconfig {path} cannot be used: its server is ''"),
        (
            kubeconfig_text("https://127.0.0.1:1", **{"certificate-authority-data": "aGVsbG8="}),
            "the kubeconfig {path} cannot be used: [X509",
        ),
        (
            kubeconfig_text("https://127.0.0.1:1", **{"certificate-authority-data": "!!!"}),
            "the kubeconfig {path} cannot be used: ",
        ),
    ],
)
def test_kubeconfig_that_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, text: str | None, said: str, command: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        assert main([command, "mp/x", "--kubeconfig", str(path)]) == 2
    assert errors.getvalue().count("\n") == 1
    assert errors.getvalue().startswith("slipstream: error: " + said.format(path=path))


def test_server_that_does_not_answer_is_said(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    [port] = free_ports(1)
    path = tmp_path / "config"
    path.write_text(kubeconfig_text(f"http://127.0.0.1:{port}"))
    done = run_with(path, "kill")
    assert done.returncode == 1
    assert f"the API server http://127.0.0.1:{port} cannot be reached" in done.stderr
    assert done.stderr.count("\n") == 1


def run_with(kubeconfig: Path, command: str) -> subprocess.CompletedProcess[str]:
    arguments = [SCRIPT, command, "mp/x", "--kubeconfig", str(kubeconfig)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_confirmations_are_seen_across_a_restart_of_the_api_server(
    tmp_path: Path, install_crds: Callable[[KubeApiServer], None]
) -> None:
    with KubeApiServer(tmp_path / "kube") as own:
        namespace = own.namespace("restarted")
        kubeconfig = str(own.kubeconfig(namespace=namespace))
        command = [SCRIPT, "kill", "mp/acme", "--kubeconfig", kubeconfig]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert "there is no kind ModelPair: are the CRDs installed?" in done.stderr

        install_crds(own)
        cluster = Cluster(own, namespace)
        cluster.report("gateway-a", 1)
        process = cluster.start("kill", "mp/acme", "--timeout", "100")  # longer than a restart takes
        assert "kill switch set" in first_line(process)
        own.restart()
        cluster.report("gateway-a", 2)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "1 of 1 gateways" in output
