"""A pair of vLLM in a cluster: API server, operator, gateway, Redis and vLLM with the plugin are real."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from slipstream_engine.embedded import TARGET_DIR
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.e2e.real_cluster import Cluster
from tests.operator.pair_objects import children
from tests.support.kube import KubeApiServer
from tests.support.kubelet import VllmKubelet
from tests.support.polling import eventually
from tests.support.ports import lasting_ports
from tests.vllm.cluster.pairs import OBJECTS, PATIENCE_S, with_group

# Each starts a server of vLLM. tests/operator has their arguments, tests/e2e/test_cluster.py a whole cluster.
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]


@contextmanager
def running_kubelet(install: VllmInstall, kube: KubeApiServer, namespace: str, folder: Path) -> Iterator[VllmKubelet]:
    [port] = lasting_ports(1)
    folder.mkdir()
    kubelet = VllmKubelet(install, kube, namespace, folder, {"http": port})
    try:
        yield kubelet
    finally:
        kubelet.stop()


@pytest.fixture
def kubelet(preloaded_vllm: VllmInstall, kube: KubeApiServer, namespace: str, tmp_path: Path) -> Iterator[VllmKubelet]:
    with running_kubelet(preloaded_vllm, kube, namespace, tmp_path / "node") as kubelet:
        yield kubelet


@pytest.fixture
def group_kubelet(
    vllm_install: VllmInstall, kube: KubeApiServer, namespace: str, tmp_path: Path
) -> Iterator[VllmKubelet]:
    """Processes of a group start for real."""
    with running_kubelet(vllm_install, kube, namespace, tmp_path / "node") as kubelet:
        yield kubelet


def test_from_kubectl_apply_to_routed_tokens(cluster: Cluster, kubelet: VllmKubelet) -> None:
    began_s = time.monotonic()
    cluster.kubectl("apply", "-f", "-", input=OBJECTS)
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments"
    [deployment] = eventually(lambda: cluster.kube.client().items(path), "a Deployment")
    made_s = time.monotonic() - began_s
    assert cluster.conditions("modelpair").get("Ready") != "True"
    kubelet.roll_out(deployment)
    ready_s = time.monotonic()
    answers, routed_s = {}, {}
    for mode in ("plain", "speculative"):
        answers[mode] = eventually(
            lambda mode=mode: _answer(cluster, mode), f"an answer that is {mode}", within_s=PATIENCE_S
        )
        routed_s[mode] = time.monotonic() - ready_s
    eventually(lambda: cluster.conditions("modelpair").get("Ready") == "True", "the pair is ready")
    print(f"apply to Deployment {made_s:.2f} s, ready server to answers {routed_s}")
    assert cluster.conditions("modelpair").get("TokenizerCompatible") == "True"
    texts = {mode: answer.json()["choices"][0]["message"]["content"] for mode, answer in answers.items()}
    assert texts["speculative"] == texts["plain"]
    counted = answers["speculative"].json()["usage"]["completion_tokens_details"]
    assert counted["accepted_prediction_tokens"] + counted["rejected_prediction_tokens"] > 0


def test_a_draft_with_another_tokenizer_ends_the_start(cluster: Cluster, kubelet: VllmKubelet, tmp_path: Path) -> None:
    """The preflight runs as the pod says, on the embedded pair with two tokens exchanged; vLLM is not started."""
    volume = Path(shutil.copytree(TARGET_DIR.parent, tmp_path / "volume"))
    file = volume / "draft" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tokenizer))
    cluster.kubectl("apply", "-f", "-", input=OBJECTS.replace(str(TARGET_DIR.parent), str(volume)))
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments"
    [deployment] = eventually(lambda: cluster.kube.client().items(path), "a Deployment")
    kubelet.roll_out(deployment)
    assert kubelet.processes == []
    compatible = eventually(lambda: _condition(cluster, "TokenizerCompatible", "False"), "the tokenizers differ")
    assert compatible["reason"] == "TokenizerMismatch"
    assert "2 token ids of the draft mean other tokens in the target" in compatible["message"]
    ready = eventually(lambda: _condition(cluster, "Ready", "False"), "the pair is not ready")
    assert ready["reason"] == "TokenizerMismatch"


def _condition(cluster: Cluster, type: str, status: str) -> dict[str, Any] | None:
    conditions = cluster.get("modelpair").get("status", {}).get("conditions", [])
    return next((each for each in conditions if (each["type"], each["status"]) == (type, status)), None)


def test_a_server_of_two_nodes_answers(groups: None, cluster: Cluster, group_kubelet: VllmKubelet) -> None:
    """Two processes of vLLM, each with half of every layer, as leader and worker of a group."""
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(with_group(OBJECTS)))
    path = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{cluster.namespace}/leaderworkersets"
    [group] = eventually(lambda: cluster.kube.client().items(path), "a LeaderWorkerSet")
    group_kubelet.roll_out_group(group)
    answers = {}
    for mode in ("plain", "speculative"):
        answers[mode] = eventually(
            lambda mode=mode: _answer(cluster, mode), f"an answer that is {mode}", within_s=PATIENCE_S
        )
    texts = {answer.json()["choices"][0]["message"]["content"] for answer in answers.values()}
    assert len(texts) == 1
    eventually(lambda: cluster.conditions("modelpair").get("Ready") == "True", "the pair is ready")
    eventually(lambda: cluster.conditions("modelpair").get("Progressing") == "False", "the rollout is complete")


def test_vllm_listens_on_both_families_where_services_have_ipv6(kubelet: VllmKubelet) -> None:
    """The server of the operator's Deployment in such a cluster, without the cluster."""
    pair, _ = yaml.safe_load_all(OBJECTS)
    pair["metadata"] |= {"namespace": "here", "uid": "1", "generation": 1}
    pod = children(pair, is_ipv6=True)["Deployment"]["spec"]["template"]
    pod["metadata"]["name"] = "support-0"
    kubelet.start_server(pod)
    for host in ("127.0.0.1", "[::1]"):
        assert httpx.get(f"http://{host}:{kubelet.port}/v1/models").json()["data"][0]["id"] == "support"


def _answer(cluster: Cluster, mode: str) -> httpx.Response | None:
    """An answer of the arm `mode`, which a client chose; None if the gateway or the rollout is not ready for it."""
    body = {
        "model": "support",
        "messages": [{"role": "user", "content": "Summarise: the parcel arrived, the customer is happy."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    headers = {"x-slipstream-mode": mode} | ({"x-slipstream-draft-length": "4"} if mode == "speculative" else {})
    answer = httpx.post(
        f"{cluster.gateways[0].url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    )
    return answer if answer.headers.get("x-slipstream-arm") == mode else None
