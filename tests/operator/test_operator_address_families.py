"""The operator's probes and metrics on `::`: both address families, and IPv4 alone on a machine without IPv6."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.operator.crashes import declare, is_done
from tests.operator.operator_process import START_TIMEOUT_S, Cluster, OperatorProcess, grant
from tests.support.kube import KubeApiServer
from tests.support.polling import PATIENCE_S, eventually

WITHOUT_IPV6 = (sys.executable, "-m", "tests.support.without_ipv6")


@pytest.fixture
def cluster(kube: KubeApiServer, install_crds: Callable[[KubeApiServer], None]) -> Cluster:
    install_crds(kube)
    return grant(kube, kube.namespace(f"test-{uuid.uuid4().hex[:8]}"))


def has_pages(host: str, operator: OperatorProcess) -> bool:
    pages = (f"{operator.metrics_port}/ready", f"{operator.metrics_port}/metrics", f"{operator.liveness_port}/healthz")
    return all(httpx.get(f"http://{host}:{page}", timeout=PATIENCE_S).is_success for page in pages)


def test_both_families_are_served_from_the_start_on(kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--host", "::") as operator:
        for host in ("127.0.0.1", "[::1]"):
            eventually(partial(has_pages, host, operator), within_s=START_TIMEOUT_S, ignoring=httpx.HTTPError)
        declare(cluster)
        eventually(lambda: is_done(cluster))  # the watch runs, and with it the server that answers the liveness probe
        assert has_pages("127.0.0.1", operator)
        assert has_pages("[::1]", operator)


def test_machine_without_ipv6_is_served_on_ipv4(kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--host", "::", before=WITHOUT_IPV6) as operator:
        eventually(lambda: has_pages("127.0.0.1", operator), within_s=START_TIMEOUT_S, ignoring=httpx.HTTPError)
        assert operator.log_path.read_text().count("no IPv6") == 1
