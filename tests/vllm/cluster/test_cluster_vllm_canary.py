"""A new revision of a pair of vLLM beside the serving one, under load.

API server, operator, gateway, Redis and the servers of vLLM are real; kubelet and controllers are simulated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.e2e.real_cluster import Cluster
from tests.e2e.revisions import Load, Rollout
from tests.e2e.test_cluster import SUMMARY
from tests.support.kube import KubeApiServer
from tests.support.kubelet import VllmKubelet
from tests.support.ports import lasting_ports
from tests.support.streams import whole_text_of
from tests.vllm.cluster.pairs import with_canary

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]  # two servers on one core
COMPARED_S = 800.0  # two servers on one core


@pytest.fixture
def make_kubelet(
    preloaded_vllm: VllmInstall, kube: KubeApiServer, namespace: str, tmp_path: Path, exit_stack: ExitStack
) -> Callable[[str], VllmKubelet]:
    """Its servers share one core. On two, each would keep one for a while, and other load on one of the cores would
    look like a slow revision."""
    core = max(os.sched_getaffinity(0))

    def make(name: str) -> VllmKubelet:
        (tmp_path / name).mkdir()
        [port] = lasting_ports(1)
        kubelet = VllmKubelet(preloaded_vllm, kube, namespace, tmp_path / name, {"http": port}, core=core)
        exit_stack.callback(kubelet.stop)
        return kubelet

    return make


def test_a_good_revision_is_promoted(cluster: Cluster, make_kubelet: Callable[[str], VllmKubelet]) -> None:
    rollout = Rollout(cluster, make_kubelet("serving"), make_kubelet("new"))
    rollout.begin(with_canary())
    serving = rollout.deployment("slipstream-support")["spec"]
    beside = rollout.change('{"spec":{"maxDraftTokens":3}}')
    rollout.new.roll_out(beside)
    with Load(cluster, SUMMARY) as load:
        ended = rollout.ended("Promoted", within_s=COMPARED_S)
    assert 20 <= ended["samples"] <= load.of(ended["revision"])
    assert {answer.text for answer in load.answers} == {whole_text_of(cluster.ask(SUMMARY, stream=True).text)}
    assert rollout.deployment("slipstream-support")["spec"]["template"] != serving["template"]
