"""A cluster's whole story on one machine: API server, operator, two gateways, Triton, Redis and kubectl are all real.

Only kubelet and controllers are simulated (`tests.support.kubelet`). The embedded pair speculates well on what it was
trained for, call summaries and replies to e-mails, and badly on rare codes, of which it never saw any.
"""

from __future__ import annotations

import random
import re
import string
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.real_cluster import (
    FIRST_SHARE,
    HOLD_BACK_SHARE,
    Cluster,
    Streams,
    Traffic,
    running_cluster,
)
from tests.support.command import SCRIPT
from tests.support.kube import KubeApiServer
from tests.support.kubelet import TritonKubelet
from tests.support.manifests import EMBEDDED, pair_yaml
from tests.support.polling import eventually
from tests.support.streams import whole_text_of

pytestmark = pytest.mark.timeout(600)

STEP_LIMIT_S = 180.0
_RNG = random.Random(11)  # the codes' class depends on them
ENGINE = "{kind: slipstream, device: cpu, dtype: float32, maxConcurrency: 8}"
OBJECTS = pair_yaml(
    ENGINE,
    *EMBEDDED,
    "maxDraftTokens: 6",
    name="support",
    model="support",
    policy=", allowClientMode: true, decision: rules, margin: 0, minOutputTokens: 0, maxRareTokenShare: 1,"
    f" minConfidence: 0, holdBackShare: {HOLD_BACK_SHARE}, parityShare: 0, thresholds: {{acceptanceFloor: 0.4}},"
    " analysis: {minSamples: 6, windowSeconds: 60, falseAlarmRequests: 100, confidence: 0.6},"
    f" rollout: {{steps: [{{share: {FIRST_SHARE}, soakSeconds: 1}}, {{share: 1, soakSeconds: 1}}]}},"
    " rollback: {coolDownSeconds: 3600, maxRetries: 0, staleAfterSeconds: 3600}",
)
SUMMARY = (
    "Summarise this call for the CRM.\n\n"
    "Agent: Hello, this is Clara, how can I help you?\nCustomer: Hello, my name is Mara Osterova. I was charged twice "
    "for my coffee machine.\nAgent: I am sorry to hear that. May I have your account number?\n"
    "Customer: It is 4820917.\nAgent: I am reversing the second payment now.\nCustomer: Thank you.\n"
    "Agent: The money is on its way to you: 89.90 EUR.\nCustomer: I understand.\n"
    "Agent: It should take about 3 days.\nCustomer: Great, thank you so much."
)
REPLY = (
    "Good morning,\nYour service is normally great. The tracking says delivered, but there is no parcel. My order is "
    "208920. Please act immediately.\nThanks,\nSarah Rosandez\n\nReply to this customer e-mail:"
)


@pytest.fixture
def kubelet(
    kube: KubeApiServer, namespace: str, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> Iterator[TritonKubelet]:
    grpc, http, metrics = free_ports(3)
    folder = tmp_path / "node"
    folder.mkdir()
    kubelet = TritonKubelet(kube, namespace, folder, {"grpc": grpc, "http": http, "metrics": metrics})
    yield kubelet
    kubelet.stop()


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(kube, namespace, tmp_path, gateways=2) as cluster:
        yield cluster


def until(
    what: str,
    check: Callable[[], Any],
    *,
    seen: Callable[[], Any] | None = None,
    within_s: float = STEP_LIMIT_S,
) -> Any:
    """`eventually` with the limit of a step of a cluster."""
    return eventually(check, what, within_s=within_s, seen=seen)


def rare_codes() -> str:
    """A request of the summaries' class, on something that nobody has ever seen."""
    codes = ["".join(_RNG.choices(string.ascii_uppercase + string.digits, k=10)) for _ in range(20)]
    return f"Summarise this call for the CRM.\n\nAgent: {', '.join(codes[:10])}\nCustomer: {', '.join(codes[10:])}"


def declare(cluster: Cluster, kubelet: TritonKubelet) -> None:
    """From `kubectl apply` to the first routed request."""
    cluster.kubectl("apply", "-f", "-", input=OBJECTS)
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments"
    deployments = until("a Deployment", lambda: cluster.kube.client().items(path))
    assert cluster.conditions("modelpair").get("Ready") != "True"
    kubelet.roll_out(deployments[0])
    until(
        "Ready",
        lambda: cluster.conditions("modelpair").get("Ready") == "True",
        seen=lambda: cluster.get("modelpair"),
    )
    assert cluster.conditions("modelpair")["TokenizerCompatible"] == "True"
    for gateway in cluster.gateways:
        models = f"{gateway.url}/v1/models"
        until(f"{gateway.url} serves", lambda url=models: serves(url))


def serves(url: str) -> bool:
    try:
        return "support" in httpx.get(url).text
    except httpx.TransportError:
        return False


def all_decide(cluster: Cluster, text: str, what: str, expected: str) -> None:
    """Wait until every gateway's decision for `text` has `expected` as its `what` (arm or reason)."""
    until(
        f"every gateway's {what} is {expected}",
        lambda: {each[what] for each in cluster.explain(text)} == {expected},
        seen=lambda: cluster.explain(text),
    )


def promote(cluster: Cluster, *texts: str) -> None:
    """Send well-known requests until all their classes are promoted."""
    classes = [cluster.ask(text).headers["x-slipstream-class"] for text in texts]
    with Traffic(cluster, *(lambda text=text: text for text in texts)):
        for name in classes:
            until(
                f"{name} promoted",
                lambda name=name: cluster.class_status(name).get("phase") == "Promoted",
                seen=lambda name=name: cluster.class_status(name),
            )


def test_a_pair_whose_engine_is_frozen_is_not_ready_and_its_container_ends(
    cluster: Cluster, kubelet: TritonKubelet
) -> None:
    """Triton's front end goes on answering the kubelet's probes: the pod and its Deployment stay ready. The engine's
    watchdog ends Triton."""
    declare(cluster, kubelet)
    assert kubelet.server is not None
    [stub] = psutil.Process(kubelet.server.child.pid).children()
    stub.suspend()
    began_s = time.monotonic()
    until("not Ready", lambda: cluster.conditions("modelpair").get("Ready") == "False")
    print(f"the pair was not Ready {time.monotonic() - began_s:.1f} s after its engine was frozen")
    ready = httpx.get(f"http://127.0.0.1:{kubelet.listed_ports['http']}/v2/health/ready")
    assert (ready.status_code, kubelet.server.child.exit_status()) == (200, None)
    until("ended", lambda: kubelet.server.child.exit_status() is not None)
    print(f"its Triton ended {time.monotonic() - began_s:.1f} s after that")


def test_class_is_promoted_rolled_back_alone_and_comes_back_with_a_new_spec(
    cluster: Cluster, kubelet: TritonKubelet
) -> None:
    declare(cluster, kubelet)
    promote(cluster, SUMMARY, REPLY)
    summaries, replies = (cluster.ask(text).headers["x-slipstream-class"] for text in (SUMMARY, REPLY))
    assert cluster.ask(rare_codes()).headers["x-slipstream-class"] == summaries
    all_decide(cluster, SUMMARY, "arm", "speculative")

    with Traffic(cluster, rare_codes, lambda: REPLY):
        until(
            "rolled back",
            lambda: cluster.class_status(summaries).get("phase") == "RolledBack",
            seen=lambda: cluster.class_status(summaries),
        )
    decision = cluster.class_status(summaries)["lastDecision"]
    assert (decision["metric"], decision["threshold"]) == ("acceptanceFloor", 0.4)
    assert decision["observed"] < 0.4
    assert cluster.class_status(replies)["phase"] == "Promoted"
    table = cluster.kubectl("get", "speculationpolicy", "support")
    assert "1/2" in table, table
    assert "Acceptance" in table, table  # the reason
    assert cluster.conditions("speculationpolicy")["RolledBack"] == "True"
    all_decide(cluster, SUMMARY, "reason", "rolled_back")
    assert {each["arm"] for each in cluster.explain(REPLY)} == {"speculative"}
    assert cluster.ask(SUMMARY).headers["x-slipstream-arm"] == "plain"

    cluster.kubectl("patch", "sp", "support", "--type=merge", "-p", '{"spec":{"draftTokens":5}}')
    promote(cluster, SUMMARY)
    assert cluster.conditions("speculationpolicy")["RolledBack"] == "False"
    all_decide(cluster, SUMMARY, "arm", "speculative")

    kill_under_streams(cluster)


def kill_under_streams(cluster: Cluster) -> None:
    """A kill amid streams: not a token differs from an undisturbed run, and nothing new speculates."""
    undisturbed = whole_text_of(cluster.ask(SUMMARY, max_tokens=160, stream=True).text)
    with Streams(cluster, SUMMARY, clients=4, mode="speculative") as streams:
        until("streams", lambda: len(streams.answers) >= 4)
        killed_s = time.monotonic()  # a stream that begins while kubectl ends may be plain already
        cluster.kubectl("patch", "modelpair", "support", "--type", "merge", "-p", '{"spec":{"killSwitch":true}}')
        all_decide(cluster, SUMMARY, "reason", "kill_switch")
        landed_s = time.monotonic()
        until("more streams", lambda: any(answer.began_s > landed_s for answer in streams.answers))
    assert {answer.text for answer in streams.answers} == {undisturbed}
    across = [answer for answer in streams.answers if answer.began_s < killed_s < answer.ended_s]
    assert any(answer.arm == "speculative" for answer in across)
    assert {answer.arm for answer in streams.answers if answer.began_s > landed_s} == {"plain"}
    assert cluster.ask(REPLY).headers["x-slipstream-reason"] == "kill_switch"
    kill_is_seen_and_taken_back(cluster)


def kill_is_seen_and_taken_back(cluster: Cluster) -> None:
    generation = cluster.get("modelpair")["metadata"]["generation"]
    landed = {"synced": 2, "total": 2, "oldestGeneration": generation}
    until(
        "seen to land",
        lambda: cluster.get("modelpair")["status"]["gateways"] == landed,
        seen=lambda: cluster.get("modelpair")["status"]["gateways"],
    )
    assert cluster.conditions("modelpair")["KillSwitchActive"] == "True"
    kubeconfig = str(cluster.kube.kubeconfig(namespace=cluster.namespace))
    command = [SCRIPT, "unkill", "mp/support", "--kubeconfig", kubeconfig]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"2 of 2 gateways have applied it, \d+ ms after", done.stdout)
    assert {each["arm"] for each in cluster.explain(SUMMARY)} == {"speculative"}
