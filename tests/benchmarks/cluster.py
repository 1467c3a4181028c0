"""A cluster for benchmarks: a real API server, operator and Redis, and gateways that take their manifest from it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from slipstream_tools.up.processes import Child

from tests.benchmarks import canned
from tests.e2e.real_cluster import start_operator
from tests.support.kube import CRDS, KubeApiServer, install_chart
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer

NAMESPACE = "canned"
SPECULATES = ", allowClientMode: true, holdBackShare: 0"
"""The rest of a policy whose clients get speculation when they ask for it."""


class Cluster(NamedTuple):
    """The parts, and the ports of the gateways, for requests and for administration."""

    kube: KubeApiServer
    operator: Child
    redis: RedisServer
    ports: list[int]
    admin_ports: list[int]


@contextmanager
def cluster(gateways: int) -> Iterator[Cluster]:
    """Starts all parts. The gateways decide about a pair of a canned server, which speculates unless it is killed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kube = stack.enter_context(KubeApiServer(folder / "kube"))
        url = stack.enter_context(canned.upstream())
        install_chart(kube, CRDS)
        kube.namespace(NAMESPACE)
        kube.client().apply_yaml(canned.pair(url, SPECULATES), namespace=NAMESPACE)
        redis = RedisServer(folder, *lasting_ports(1))
        stack.callback(redis.stop)
        operator = start_operator(kube, NAMESPACE, folder, redis.url)
        stack.callback(operator.stop, timeout_s=10)
        options = (
            *("--source", "kubernetes", "--kubeconfig", str(kube.kubeconfig()), "--redis", redis.url),
            *("--namespace", NAMESPACE, "--report-namespace", NAMESPACE),
            *("--conformance", "off"),  # the canned server does not pass the checks without which nothing speculates
        )
        ports, admin_ports = [], lasting_ports(gateways)
        for number, admin_port in enumerate(admin_ports):
            own = ("--snapshot", str(folder / f"{number}.snapshot"), "--admin-port", str(admin_port))
            started = canned.gateway(folder, *options, *own, core=None, name=f"gateway-{number}")
            ports.append(stack.enter_context(started)[0])
        yield Cluster(kube, operator, redis, ports, admin_ports)
