"""Operators before the API server of this run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.operator_process import RESYNC_S, Cluster, OperatorProcess, grant
from tests.support.kube import KubeApiServer


@pytest.fixture(scope="module")
def operator(
    kube: KubeApiServer, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One operator for all tests of a file, in the namespace of the file's `cluster`."""
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(kube, cluster.namespace, folder, "--resync", str(RESYNC_S)) as running:
        yield running.wait_ready()


@pytest.fixture
def by_events(kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    """A namespace whose operator looks only where something has changed: its first resync is beyond the test."""
    cluster = grant(kube, namespace)
    with OperatorProcess(kube, namespace, tmp_path, "--resync", "3600") as running:
        running.wait_ready()
        yield cluster
