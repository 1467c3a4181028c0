"""A cluster for benchmarks: a real API server, operator and Redis, and gateways that take their manifest from it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from slipstream_tools.up.processes import Child

from tests.benchmarks import canned
from tests.support.kube import CRDS, KubeApiServer, install_chart
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer

NAMESPACE = "canned"


class Operator:
    """A `slipstream operator` that can be killed and started again."""

    def __init__(self, kube: KubeApiServer, folder: Path, redis_url: str) -> None:
        liveness, metrics = lasting_ports(2)
        self._command = [
            *(sys.executable, "-m", "slipstream_tools.cli", "operator"),
            *("--kubeconfig", str(kube.kubeconfig()), "--namespace", NAMESPACE, "--report-namespace", NAMESPACE),
            *("--host", "127.0.0.1", "--liveness-port", str(liveness), "--metrics-port", str(metrics)),
        ]
        self._log_path = folder / "operator.log"
        self._env = {**os.environ, "SLIPSTREAM_REDIS_URL": redis_url}
        self.start()

    def start(self) -> None:
        self._child = Child(name="the operator", command=self._command, log_path=self._log_path, env=self._env)

    def kill(self) -> None:
        os.kill(self._child.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        self._child.stop(timeout_s=10)

    def check(self) -> None:
        """Raises where it has ended by itself."""
        if (status := self._child.exit_status()) is not None:
            raise RuntimeError(f"the operator {status}:\n{self._child.log_tail()}")


class Cluster(NamedTuple):
    """The parts, and the ports of the gateways."""

    kube: KubeApiServer
    operator: Operator
    redis: RedisServer
    ports: list[int]


@contextmanager
def cluster(gateways: int) -> Iterator[Cluster]:
    """Starts all parts. The gateways decide about a pair of a canned server, which speculates unless it is killed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kube = stack.enter_context(KubeApiServer(folder / "kube"))
        upstream_port = stack.enter_context(canned.upstream())
        install_chart(kube, CRDS)
        kube.namespace(NAMESPACE)
        policy = ", allowClientMode: true, holdBackShare: 0"
        kube.client().apply_yaml(canned.MANIFEST.format(port=upstream_port, policy=policy), namespace=NAMESPACE)
        redis = RedisServer(folder, *lasting_ports(1))
        stack.callback(redis.stop)
        operator = Operator(kube, folder, redis.url)
        stack.callback(operator.stop)
        options = (
            *("--source", "kubernetes", "--kubeconfig", str(kube.kubeconfig()), "--redis", redis.url),
            *("--namespace", NAMESPACE, "--report-namespace", NAMESPACE),
            *("--conformance", "off"),  # the canned server does not pass the checks without which nothing speculates
        )
        names = [f"gateway-{number}" for number in range(gateways)]
        ports = [
            stack.enter_context(
                canned.gateway(folder, *options, "--snapshot", str(folder / f"{name}.snapshot"), core=None, name=name)
            )[0]
            for name in names
        ]
        yield Cluster(kube, operator, redis, ports)
