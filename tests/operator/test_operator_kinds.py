"""A real operator before a real API server that gets a kind of another project later."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.operator.pair_objects import GROUP_SPEC
from tests.support.foreign_kinds import leader_worker_sets
from tests.support.kube import KubeApiServer, install_definitions
from tests.support.polling import eventually


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None) -> Cluster:
    return grant(kube, kube.namespace("operator-kinds"))


def test_a_kind_that_is_installed_later_needs_no_restart(kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    client, definition = cluster.client, kube.client().path_of(leader_worker_sets())
    if client.exists(definition):
        client.delete(definition)
        eventually(lambda: not client.exists(definition))
    group = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{cluster.namespace}/leaderworkersets/slipstream-late-group"
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--kinds-every", "1", "--leader-election") as operator:
        operator.wait_ready()
        cluster.declare("ModelPair", "late", GROUP_SPEC)
        cluster.wait_condition("modelpairs", "late", "Ready", "False", "KindMissing")
        install_definitions(kube, [leader_worker_sets()])
        eventually(lambda: client.exists(group))
        cluster.wait_condition("modelpairs", "late", "Progressing", "True", "RollingOut")
        client.delete(definition)
        cluster.wait_condition("modelpairs", "late", "Ready", "False", "KindMissing")
        install_definitions(kube, [leader_worker_sets()])
        eventually(lambda: client.exists(group))
        assert "(LeaderWorkerSet): everything is listed again" in operator.log()
        assert operator.terminate() < 10.0
