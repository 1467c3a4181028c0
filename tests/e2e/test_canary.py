"""A new revision of a pair beside the serving one: promoted or taken back by what its answers show, under load.

API server, operator, gateway, both Tritons, Redis and kubectl are real; kubelet and controllers are simulated.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.real_cluster import Cluster, running_cluster, text_of
from tests.e2e.test_cluster import REPLY, SUMMARY, until
from tests.support.kube import KubeApiServer
from tests.support.kube_client import JSON
from tests.support.kubelet import TritonKubelet
from tests.support.relay import Relay

pytestmark = pytest.mark.timeout(600)

FAR_S = 0.4
CLIENTS = 3
REVISION = "x-slipstream-revision"
OBJECTS = """\
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {name: support}
spec:
  model: support
  target: {source: "embedded:target"}
  draft: {kind: model, source: "embedded:draft"}
  maxDraftTokens: 6
  engine: {kind: slipstream, device: cpu, dtype: float32, maxConcurrency: 8}
  serving:
    gpus: 0
    update: {canary: {share: 0.5, minSamples: 20, maxSlowdown: 0.5, errorRate: 0.1, parityLoss: 0.2}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {name: support}
spec: {pair: support, decision: rules, minOutputTokens: 0, maxRareTokenShare: 1, minConfidence: 0, parityShare: 1}
"""
NEW_DRAFT_LENGTH = '{"spec":{"maxDraftTokens":4}}'


class Load:
    """Streams of one text by several clients for as long as the context lasts; all must succeed with the same text.
    `revisions` counts the answers of each revision."""

    def __init__(self, cluster: Cluster, text: str) -> None:
        self._cluster, self._text = cluster, text
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self.answers: list[tuple[str, str]] = []

    def __enter__(self) -> Load:
        self._running = [self._pool.submit(self._run) for _ in range(CLIENTS)]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._pool.shutdown()
        for running in self._running:
            running.result()

    def of(self, revision: str) -> int:
        return sum(found == revision for found, _ in self.answers)

    def _run(self) -> None:
        while not self._over.is_set():
            response = self._cluster.ask(self._text, stream=True)
            self.answers.append((response.headers.get(REVISION, ""), text_of(response.text)))


class Rollout:
    """The pair's objects in the cluster, and what the test does to them."""

    def __init__(self, cluster: Cluster, serving: TritonKubelet, new: TritonKubelet) -> None:
        self.cluster, self.serving, self.new = cluster, serving, new

    def begin(self) -> None:
        """The first revision serves."""
        self.cluster.kubectl("apply", "-f", "-", input=OBJECTS)
        self.serving.roll_out(until("a Deployment", lambda: self.deployment("slipstream-support")))
        until("Ready", lambda: self.cluster.conditions("modelpair").get("Ready") == "True")
        [gateway] = self.cluster.gateways
        until("it serves", lambda: _serves(f"{gateway.url}/v1/models"), seen=gateway.child.log_tail)

    def change(self, patch: str) -> JSON:
        """A new revision. Returns its Deployment; that of the serving revision stays the same."""
        before = self.deployment("slipstream-support")
        self.cluster.kubectl("patch", "modelpair", "support", "--type=merge", "-p", patch)
        beside: JSON = until("a second Deployment", lambda: self.deployment("canary-slipstream-support"))
        assert self.deployment("slipstream-support")["spec"] == before["spec"]
        assert self.canary["phase"] == "Starting"
        return beside

    def deployment(self, name: str) -> JSON:
        path = f"/apis/apps/v1/namespaces/{self.cluster.namespace}/deployments"
        found = self.cluster.kube.client().items(path)
        return next((each for each in found if each["metadata"]["name"] == name), {})

    @property
    def canary(self) -> JSON:
        status: JSON = self.cluster.get("modelpair").get("status", {})
        found: JSON = status.get("canary") or {}
        return found

    def ended(self, phase: str) -> JSON:
        """The state of the new revision after its comparison; its servers are gone."""
        until(phase, lambda: self.canary.get("phase") == phase, seen=lambda: self.canary)
        until("its servers are gone", lambda: not self.deployment("canary-slipstream-support"))
        return self.canary


def _serves(url: str) -> bool:
    try:
        return "support" in httpx.get(url).text
    except httpx.TransportError:
        return False


@pytest.fixture
def make_kubelet(
    kube: KubeApiServer, namespace: str, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> Iterator[Callable[[str], TritonKubelet]]:
    made: list[TritonKubelet] = []

    def make(name: str) -> TritonKubelet:
        grpc, http, metrics = free_ports(3)
        (tmp_path / name).mkdir()
        made.append(TritonKubelet(kube, namespace, tmp_path / name, {"grpc": grpc, "http": http, "metrics": metrics}))
        return made[-1]

    yield make
    for kubelet in made:
        kubelet.stop()


@pytest.fixture
def rollout(
    kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path, make_kubelet: Callable[[str], TritonKubelet]
) -> Iterator[Rollout]:
    with running_cluster(kube, namespace, tmp_path, gateways=1) as cluster:
        found = Rollout(cluster, make_kubelet("serving"), make_kubelet("new"))
        found.begin()
        yield found


def test_a_good_revision_is_promoted_and_replaces_the_servers(rollout: Rollout) -> None:
    cluster, old = rollout.cluster, rollout.deployment("slipstream-support")
    with Load(cluster, SUMMARY) as load:
        beside = rollout.change(NEW_DRAFT_LENGTH)
        rollout.new.roll_out(beside)
        until("it gets requests", lambda: rollout.canary.get("phase") == "Comparing", seen=lambda: rollout.canary)
        revision = rollout.canary["revision"]
        assert cluster.conditions("modelpair")["Accepted"] == "False"
        assert cluster.get("modelpair")["status"]["state"] == "Comparing"
        ended = rollout.ended("Promoted")
    assert 20 <= ended["samples"] <= load.of(revision)
    assert load.of("") > 0
    assert len({text for _, text in load.answers}) == 1
    assert cluster.conditions("modelpair")["Accepted"] == "True"
    new = rollout.deployment("slipstream-support")
    assert new["spec"]["template"] != old["spec"]["template"]
    assert new["spec"]["template"]["spec"].keys() == old["spec"]["template"]["spec"].keys()
    assert "RevisionPromoted" in cluster.kubectl("get", "events", "-o", "name,reason=.reason", "-o", "json")


def slower(rollout: Rollout, beside: JSON) -> Callable[[], None]:
    relays = {name: Relay(port, delay_s=FAR_S) for name, port in rollout.new.listed_ports.items()}
    rollout.new.listed_ports = {name: relay.port for name, relay in relays.items()}
    rollout.new.roll_out(beside)

    def clean_up() -> None:
        for relay in relays.values():
            relay.stop()

    return clean_up


def other_tokens(rollout: Rollout, beside: JSON) -> Callable[[], None]:
    rollout.new.weights = {"embedded:target": "embedded:draft"}
    rollout.new.roll_out(beside)
    return lambda: None


def dies(rollout: Rollout, beside: JSON) -> Callable[[], None]:
    rollout.new.roll_out(beside)

    def kill() -> None:
        assert rollout.new.server is not None
        os.kill(rollout.new.server.child.pid, signal.SIGKILL)

    until("it gets requests", lambda: rollout.canary.get("phase") == "Comparing")
    threading.Timer(1.0, kill).start()
    return lambda: None


@pytest.mark.parametrize(
    ("harm", "rule"), [(slower, "SlowerThanServing"), (other_tokens, "ParityGuard"), (dies, "ErrorRate")]
)
def test_a_bad_revision_is_taken_back_and_no_request_fails(
    rollout: Rollout, harm: Callable[[Rollout, JSON], Callable[[], None]], rule: str
) -> None:
    cluster = rollout.cluster
    serving = rollout.deployment("slipstream-support")["spec"]
    with Load(cluster, SUMMARY) as load:
        clean_up = harm(rollout, rollout.change(NEW_DRAFT_LENGTH))
        ended = rollout.ended("RolledBack")
    clean_up()
    assert ended["rule"] == rule, ended
    assert rollout.deployment("slipstream-support")["spec"] == serving
    undisturbed = text_of(cluster.ask(SUMMARY, stream=True).text)
    has_own_tokens = rule == "ParityGuard"
    texts = {text for revision, text in load.answers if not (revision and has_own_tokens)}
    assert load.of(ended["revision"]) > 0
    assert texts == {undisturbed}
    conditions = {each["type"]: each for each in cluster.get("modelpair")["status"]["conditions"]}
    assert conditions["Accepted"]["reason"] == "RevisionRolledBack"
    assert conditions["Ready"]["status"] == "True"
    # The same revision is not tried again, until its retryToken changes.
    cluster.kubectl("annotate", "modelpair", "support", "touched=1")
    cluster.ask(REPLY)
    assert rollout.canary == ended
    token = {"spec": {"serving": {"update": {"canary": {"retryToken": "2"}}}}}
    rollout.change(json.dumps(token))


def test_a_revision_that_does_not_start_is_taken_back(rollout: Rollout) -> None:
    beside = rollout.change(NEW_DRAFT_LENGTH)
    client, namespace = rollout.cluster.kube.client(), rollout.cluster.namespace
    template = beside["spec"]["template"]
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "canary-0"},
        "spec": template["spec"],
    }
    client.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    ended = {"exitCode": 1, "reason": "Error", "message": "error: the checkpoint is not readable"}
    status = {
        "name": "triton",
        "ready": False,
        "restartCount": 2,
        "image": "x",
        "imageID": "x",
        "state": {"terminated": ended},
    }
    client.patch_status(
        f"/api/v1/namespaces/{namespace}/pods/canary-0", {"phase": "Running", "containerStatuses": [status]}
    )
    ended_status = rollout.ended("RolledBack")
    assert ended_status["rule"] == "NotStarted"
    assert "the checkpoint is not readable" in ended_status["message"]
    assert rollout.cluster.ask(SUMMARY).headers.get(REVISION) is None
