"""A pair in a cluster with a second revision: what happens to its servers, and the load meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from tests.e2e.real_cluster import Cluster
from tests.e2e.test_cluster import ENGINE, STEP_LIMIT_S, serves, until
from tests.support.clients import Clients
from tests.support.kube_client import KubeError
from tests.support.kubelet import Kubelet, TritonKubelet
from tests.support.manifests import EMBEDDED, JSON, pair_yaml
from tests.support.streams import whole_text_of

RUNS_S, STOPS_S = 0.05, 0.2  # of a slow server
NOTICED_S = 5.0
CLIENTS = 3
REVISION = "x-slipstream-revision"
CANARY = "{share: 0.5, minSamples: 20, maxSlowdown: 0.5, errorRate: 0.1, parityLoss: 0.2}"
OBJECTS = pair_yaml(
    ENGINE,
    *EMBEDDED,
    "maxDraftTokens: 6",
    f"serving: {{gpus: 0, update: {{canary: {CANARY}}}}}",
    name="support",
    model="support",
    policy=", decision: rules, minOutputTokens: 0, maxRareTokenShare: 1, minConfidence: 0, parityShare: 1",
)
NEW_DRAFT_LENGTH = '{"spec":{"maxDraftTokens":4}}'


class Answer(NamedTuple):
    """A stream that reached its end, of a new `revision` or (empty) of the serving one. `ended_s` by
    `time.monotonic`."""

    revision: str
    text: str
    seconds: float
    ended_s: float


class Load(Clients):
    """Streams of one text by several clients; all must succeed."""

    def __init__(self, cluster: Cluster, text: str) -> None:
        super().__init__(CLIENTS)
        self._cluster, self._text = cluster, text
        self.answers: list[Answer] = []

    def of(self, revision: str) -> int:
        """The number of answers of `revision`."""
        return sum(answer.revision == revision for answer in self.answers)

    def _run(self, number: int) -> None:
        while not self._over.is_set():
            began_s = time.monotonic()
            response = self._cluster.ask(self._text, stream=True)
            ended_s = time.monotonic()
            revision = response.headers.get(REVISION, "")
            self.answers.append(Answer(revision, whole_text_of(response.text), ended_s - began_s, ended_s))


class Rollout:
    """The pair's objects in the cluster, and what the test does to them."""

    def __init__(self, cluster: Cluster, serving: Kubelet, new: Kubelet) -> None:
        self.cluster, self.serving, self.new = cluster, serving, new
        self.load: Load | None = None

    def begin(self, objects: str = OBJECTS) -> None:
        """The first revision serves."""
        self.cluster.kubectl("apply", "-f", "-", input=objects)
        self.serving.roll_out(until("a Deployment", lambda: self.deployment("slipstream-support")))
        until("Ready", lambda: self.cluster.conditions("modelpair").get("Ready") == "True")
        [gateway] = self.cluster.gateways
        until("it serves", lambda: serves(f"{gateway.url}/v1/models"), seen=gateway.child.log_tail)

    def change(self, patch: str) -> JSON:
        """A new revision. Returns its Deployment; that of the serving revision stays the same."""
        before = self.deployment("slipstream-support")
        self.cluster.kubectl("patch", "modelpair", "support", "--type=merge", "-p", patch)
        beside: JSON = until("a second Deployment", self.beside)
        assert self.deployment("slipstream-support")["spec"] == before["spec"]
        # The status follows the Deployment.
        until("its phase is Starting", lambda: self.canary.get("phase") == "Starting", seen=lambda: self.canary)
        return beside

    def beside(self) -> JSON:
        """The Deployment of the new revision; empty if there is none."""
        return next((each for each in self._deployments() if each["metadata"]["name"].startswith("canary-")), {})

    def deployment(self, name: str) -> JSON:
        return next((each for each in self._deployments() if each["metadata"]["name"] == name), {})

    def _deployments(self) -> list[JSON]:
        path = f"/apis/apps/v1/namespaces/{self.cluster.namespace}/deployments"
        found: list[JSON] = self.cluster.kube.client().items(path)
        return found

    @property
    def canary(self) -> JSON:
        status: JSON = self.cluster.get("modelpair").get("status", {})
        found: JSON = status.get("canary") or {}
        return found

    def ended(self, phase: str, *, within_s: float = STEP_LIMIT_S) -> JSON:
        """The state of the new revision after its comparison; its servers are gone."""
        until(phase, lambda: self.canary.get("phase") == phase, seen=lambda: self.canary, within_s=within_s)
        until("its servers are gone", lambda: not self.beside())
        # Its pods go with it, as Kubernetes collects them.
        self.cluster.kubectl("delete", "pods", "--selector", "slipstream.dev/revision", "--wait=false", "--force")
        return self.canary


def slower(rollout: Rollout, beside: JSON) -> Callable[[], None]:
    """The server is stopped for most of the time. So it is several times as slow as the other one on any machine."""
    assert isinstance(rollout.new, TritonKubelet)
    rollout.new.roll_out(beside)
    assert rollout.new.server is not None
    group, over = rollout.new.server.child.pid, threading.Event()

    def slow_down() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.wait(RUNS_S):
                os.killpg(group, signal.SIGSTOP)
                over.wait(STOPS_S)
                os.killpg(group, signal.SIGCONT)

    thread = threading.Thread(target=slow_down)
    thread.start()

    def clean_up() -> None:
        over.set()
        thread.join()

    return clean_up


def other_tokens(rollout: Rollout, beside: JSON) -> Callable[[], None]:
    assert isinstance(rollout.new, TritonKubelet)
    rollout.new.weights = {"embedded:target": "embedded:draft"}
    rollout.new.roll_out(beside)
    return lambda: None


def dies(rollout: Rollout, beside: JSON) -> Callable[[], None]:
    """The server is killed under load; its pod is said to have crashed some time later."""
    rollout.new.roll_out(beside)

    def kill() -> None:
        rollout.new.kill()
        time.sleep(NOTICED_S)
        try:
            rollout.new.say_crashed(beside)
        except KubeError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise  # the operator may have removed the revision by then, because its answers failed

    until("it has answered", lambda: rollout.load is not None and rollout.load.of(rollout.canary.get("revision", "-")))
    killing = threading.Thread(target=kill)
    killing.start()
    return killing.join
