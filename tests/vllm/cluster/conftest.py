"""A cluster for pairs of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.real_cluster import Cluster, running_cluster
from tests.support.foreign_kinds import leader_worker_sets
from tests.support.kube import KubeApiServer, install_definitions


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(kube, namespace, tmp_path, gateways=1) as cluster:
        yield cluster


@pytest.fixture
def groups(kube: KubeApiServer) -> None:
    """The cluster has the kind LeaderWorkerSet."""
    install_definitions(kube, [leader_worker_sets()])
