"""A new revision of a pair beside the serving one: promoted or taken back by what its answers show, under load.

API server, operator, gateway, both Tritons, Redis and kubectl are real; kubelet and controllers are simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.real_cluster import running_cluster
from tests.e2e.revisions import NEW_DRAFT_LENGTH, REVISION, Load, Rollout, dies, other_tokens, slower
from tests.e2e.test_cluster import REPLY, SUMMARY, until
from tests.support.kube import KubeApiServer
from tests.support.kubelet import TritonKubelet
from tests.support.manifests import JSON
from tests.support.ports import lasting_ports
from tests.support.streams import whole_text_of

# tests/operator has each rule.
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture
def make_kubelet(
    kube: KubeApiServer, namespace: str, tmp_path: Path, exit_stack: ExitStack
) -> Callable[[str], TritonKubelet]:
    def make(name: str) -> TritonKubelet:
        ports = dict(zip(("grpc", "http", "metrics"), lasting_ports(3), strict=True))
        (tmp_path / name).mkdir()
        kubelet = TritonKubelet(kube, namespace, tmp_path / name, ports)
        exit_stack.callback(kubelet.stop)
        return kubelet

    return make


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
    assert len({answer.text for answer in load.answers}) == 1
    assert cluster.conditions("modelpair")["Accepted"] == "True"
    new = rollout.deployment("slipstream-support")
    assert new["spec"]["template"] != old["spec"]["template"]
    assert new["spec"]["template"]["spec"].keys() == old["spec"]["template"]["spec"].keys()
    assert "RevisionPromoted" in cluster.kubectl("get", "events", "-o", "name,reason=.reason", "-o", "json")


@pytest.mark.parametrize(
    ("harm", "rule"),
    [(slower, "SlowerThanServing"), (other_tokens, "ParityGuard"), (dies, "NotStarted")],
)
def test_a_bad_revision_is_taken_back_and_no_request_fails(
    rollout: Rollout, harm: Callable[[Rollout, JSON], Callable[[], None]], rule: str
) -> None:
    cluster = rollout.cluster
    serving = rollout.deployment("slipstream-support")["spec"]
    with Load(cluster, SUMMARY) as load:
        rollout.load = load
        clean_up = harm(rollout, rollout.change(NEW_DRAFT_LENGTH))
        ended = rollout.ended("RolledBack")
    clean_up()
    assert ended["rule"] == rule, ended
    assert rollout.deployment("slipstream-support")["spec"] == serving
    undisturbed = whole_text_of(cluster.ask(SUMMARY, stream=True).text)
    has_own_tokens = rule == "ParityGuard"
    texts = {answer.text for answer in load.answers if not (answer.revision and has_own_tokens)}
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
