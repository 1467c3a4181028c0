"""A real `slipstream operator`, with the rights that it needs and no others, before a test's API server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import httpx

from tests.support.kube import KubeApiServer, KubeClient, KubeError
from tests.support.kube_client import JSON
from tests.support.manifests import manifest
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import lasting_ports

USER = "operator"
GROUP = "/apis/slipstream.dev/v1alpha1"
START_TIMEOUT_S = 60.0
RESYNC_S = 2.0

_RULES: list[JSON] = [
    {
        "apiGroups": ["slipstream.dev"],
        "resources": ["modelpairs", "speculationpolicies"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["slipstream.dev"],
        "resources": ["modelpairs/status", "speculationpolicies/status"],
        "verbs": ["patch"],
    },
    {
        "apiGroups": ["apps", "", "policy", "networking.k8s.io"],
        "resources": [
            *("deployments", "services", "configmaps", "serviceaccounts", "poddisruptionbudgets", "networkpolicies")
        ],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": [
            *("leaderworkerset.x-k8s.io", "autoscaling", "keda.sh"),
            *("inference.networking.k8s.io", "gateway.networking.k8s.io"),
        ],
        "resources": [
            *("leaderworkersets", "horizontalpodautoscalers", "scaledobjects", "inferencepools", "httproutes")
        ],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "create", "patch"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "list", "watch", "create", "update", "delete"],
    },
]

Found = TypeVar("Found")


def grant(kube: KubeApiServer, namespace: str) -> Cluster:
    """Give the user `operator` its rights in a namespace."""
    kube.client().apply_yaml(
        [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "Role",
                "metadata": {"name": "operator"},
                "rules": _RULES,
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "operator"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
                "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}],
            },
        ],
        namespace=namespace,
    )
    return Cluster(kube.client(), namespace)


def revoke(kube: KubeApiServer, namespace: str) -> None:
    kube.client().delete(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/operator")


def settled(look: Callable[[], Found], *, for_s: float) -> Found:
    """What `look` finds, once that has been the same for so long."""
    last, since = look(), time.monotonic()

    def stands_still() -> bool:
        nonlocal last, since
        if (now := look()) != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > for_s

    eventually(stands_still)
    return last


class OperatorProcess:
    """A running operator; `with` ends it. `module` is what `python -m` runs in place of the command; `before` is a
    program, with its arguments, that starts the operator. `environment`: further variables."""

    def __init__(
        self,
        kube: KubeApiServer,
        namespace: str,
        folder: Path,
        *options: str,
        module: tuple[str, ...] = ("slipstream_tools.cli", "operator"),
        user: str = USER,
        before: tuple[str, ...] = (),
        python: str = sys.executable,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.liveness_port, self.metrics_port = lasting_ports(2)
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / f"operator-{self.metrics_port}.log"
        command = [
            *before,
            python,
            "-m",
            *module,
            "--kubeconfig",
            str(kube.kubeconfig(user, namespace=namespace)),
        ]
        command += ["--namespace", namespace, "--report-namespace", namespace, "--lease-namespace", namespace]
        command += ["--host", "127.0.0.1", "--liveness-port", str(self.liveness_port)]
        command += ["--metrics-port", str(self.metrics_port), *options]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=Path(__file__).parents[2], env={**os.environ, **environment}
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is not None:
            print(f"exit status {self._process.poll()}", self.log(), sep="\n")
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def wait_ready(self) -> Self:
        eventually(lambda: self.is_ready() or self._ended(), within_s=START_TIMEOUT_S)
        return self

    def is_ready(self) -> bool:
        return self.ask("/ready") == httpx.codes.OK

    def ask(self, path: str, *, port: int | None = None) -> int | None:
        """The HTTP status of an answer; None where nobody answers."""
        try:
            return self._get(path, port=port or self.metrics_port).status_code
        except httpx.HTTPError:
            return None

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self.ask("/healthz", port=self.liveness_port) == httpx.codes.OK

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric of this name over its labels, or over those with these values."""
        text = self._get("/metrics", port=self.metrics_port).text
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        found = [(full, float(value)) for full, value in lines if full.partition("{")[0] == name]
        return sum(value for full, value in found if all(f'{key}="{wanted}"' in full for key, wanted in labels.items()))

    def writes(self) -> float:
        return sum(self.written().values())

    def written(self) -> dict[str, float]:
        """The writes so far by their labels. Leases are renewed whether anything happens or not, and are not in it."""
        lines = self._get("/metrics", port=self.metrics_port).text.splitlines()
        written = [line.rsplit(" ", 1) for line in lines if line.startswith("slipstream_operator_writes_total{")]
        return {labels: float(value) for labels, value in written if 'resource="leases"' not in labels}

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def wait(self, *, within_s: float = PATIENCE_S) -> int:
        """The exit status; fails when it has not ended in time."""
        return self._process.wait(timeout=within_s)

    def terminate(self) -> float:
        """End it as Kubernetes does; returns how long that took, in seconds."""
        started = time.monotonic()
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.log()
        return time.monotonic() - started

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def _get(self, path: str, *, port: int) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False, timeout=PATIENCE_S)

    def _ended(self) -> bool:
        assert self._process.poll() is None, self.log()
        return False


class Cluster:
    """What tests look at in one namespace."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    def path(self, plural: str, name: str = "") -> str:
        roots = {
            "modelpairs": GROUP,
            "speculationpolicies": GROUP,
            "deployments": "/apis/apps/v1",
            "poddisruptionbudgets": "/apis/policy/v1beta1",
            "leases": "/apis/coordination.k8s.io/v1",
        }
        collection = f"{roots.get(plural, '/api/v1')}/namespaces/{self.namespace}/{plural}"
        return f"{collection}/{name}" if name else collection

    def get(self, plural: str, name: str) -> JSON | None:
        try:
            return self.client.get(self.path(plural, name))
        except KubeError as exc:
            if exc.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def declare(self, kind: str, name: str, spec: JSON) -> JSON:
        """Make a ModelPair or SpeculationPolicy, as its user does."""
        plural = {"ModelPair": "modelpairs", "SpeculationPolicy": "speculationpolicies"}[kind]
        return self.client.create(self.path(plural), manifest(kind, name, spec))

    def pair(self, name: str, **spec: Any) -> JSON:
        return self.declare("ModelPair", name, {**pair_spec(name), **spec})

    def policy(self, name: str, pair: str | None = None, **spec: Any) -> JSON:
        return self.declare("SpeculationPolicy", name, {"pair": pair or name, **spec})

    def patch(self, plural: str, name: str, body: JSON) -> JSON:
        return self.client.patch(self.path(plural, name), body)

    def condition(self, plural: str, name: str, type: str) -> tuple[str, str, str] | None:
        """Status, reason and message of one condition; None where it, or the object's status, is not of its spec."""
        found = self.client.get(self.path(plural, name))
        status = found.get("status") or {}
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return None
        for entry in status.get("conditions", ()):
            if entry["type"] == type:
                return entry["status"], entry["reason"], entry["message"]
        return None

    def wait_condition(self, plural: str, name: str, type: str, *expected: str) -> str:
        """The message of a condition, once it has the expected status and, if given, reason."""

        def look() -> tuple[str, str, str] | None:
            found = self.condition(plural, name, type)
            return found if found is not None and found[: len(expected)] == expected else None

        return eventually(look)[2]

    def children(self, pair: str) -> dict[str, JSON]:
        """The children that there are, by their plural."""
        plurals = ("deployments", "services", "configmaps", "serviceaccounts", "poddisruptionbudgets")
        found = {plural: self.get(plural, f"slipstream-{pair}") for plural in plurals}
        return {plural: item for plural, item in found.items() if item is not None}

    def events(self, name: str) -> list[JSON]:
        items = self.client.items(self.path("events"))
        return [item for item in items if item["involvedObject"]["name"] == name]

    def versions(self) -> dict[str, str]:
        """The resource version of everything that an operator might write."""
        plurals = ("modelpairs", "speculationpolicies", "deployments", "services", "configmaps", "serviceaccounts")
        items = [item for plural in (*plurals, "poddisruptionbudgets") for item in self.client.items(self.path(plural))]
        return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items}


def pair_spec(name: str) -> JSON:
    return {
        "model": name,
        "engine": {"kind": "slipstream"},
        "target": {"source": "embedded:target"},
        "draft": {"kind": "model", "source": "embedded:draft"},
        "serving": {"gpus": 0, "replicas": 1, "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}}},
    }
