"""An operator that starts cold before many pairs.

A real API server with its etcd and a real Redis, ModelPairs with a SpeculationPolicy each, then the operator: how long
until every one has its status and all its children, what memory it takes, and what it writes when nothing happens any
more. All share this machine's cores: read the seconds beside its load. There is no kubelet, so no pair gets ready.

`--python` is the Python of an environment with `pip install .[operator]` alone, as in the image. The development
environment has `kubernetes-validate`, which the package `kubernetes` imports where it is installed: 30 MB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
from slipstream_core.manifest import ModelPair, parse_resource
from slipstream_operator.children.all import children_of
from slipstream_operator.cluster.resources import Kind, resources
from slipstream_operator.settings import WORKERS
from slipstream_operator.types import ServingDefaults

from tests.benchmarks.canned import cpu_s
from tests.benchmarks.harness import Option, Report, benchmark
from tests.support.kube import CRDS, KubeApiServer, install_chart
from tests.support.metrics import total
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer

NAMESPACES = 10
LIMIT_S = 900.0

_KINDS = resources(pdb_version="v1beta1")


class Progress(NamedTuple):
    """Parents with a status of their generation, and children, that there are."""

    statuses: int
    children: int


def child_kinds() -> tuple[Kind, ...]:
    """The kinds of a pair's children, of which it has one each."""
    parsed = parse_resource(pair("any")).item
    assert isinstance(parsed, ModelPair)
    made = children_of(parsed, uid="", defaults=ServingDefaults(), live=None)
    return tuple(Kind(child["kind"]) for child in made)


def watch(
    kube: KubeApiServer, process: psutil.Process, metrics_url: str, args: argparse.Namespace, report: Report
) -> None:
    """The cold start, and the quiet after it."""
    pairs, started = args.pairs, time.monotonic()
    # Lists of everything take the API server's time: they are for the end, to see that it is one.
    while not is_idle(metrics_url, 2 * pairs) or progress(kube) != Progress(2 * pairs, len(child_kinds()) * pairs):
        elapsed_s = time.monotonic() - started
        if elapsed_s > LIMIT_S or not process.is_running():
            raise SystemExit(f"not done after {elapsed_s:.0f} s: {progress(kube)}")
        time.sleep(0.5)
    took_s, used_s, rss = time.monotonic() - started, cpu_s(process), process.memory_info().rss
    report.row(
        f"{pairs} pairs, cold start: goals 40 s, 200 MB",
        seconds=took_s,
        operator_cpu_s=used_s,
        servers_cpu_s=sum(map(cpu_s, servers())),
        memory_mb=rss / 1e6,
    )
    wait_for_quiet(metrics_url, args.steady)
    before, versions, used_s = writes(metrics_url), resource_versions(kube), cpu_s(process)
    time.sleep(args.steady)
    written = writes(metrics_url) - before
    report.row(
        f"{args.steady:g} s of quiet after {before:.0f} writes: goal 0",
        writes=written,
        changed=len(versions.items() - resource_versions(kube).items()),
        cpu_share=(cpu_s(process) - used_s) / args.steady,
        memory_mb=process.memory_info().rss / 1e6,
    )
    report.require(not written, f"{written:.0f} writes in quiet")


def servers() -> list[psutil.Process]:
    """The API server and etcd."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.name() in ("kube-apiserver", "etcd")]


def is_idle(metrics_url: str, parents: int) -> bool:
    """Whether the operator knows all parents and has nothing left to do."""
    try:
        text = httpx.get(metrics_url, trust_env=False, timeout=30).text
    except httpx.HTTPError:
        return False  # it has only just started
    known = sum(total(text, "slipstream_operator_objects", kind=kind) for kind in ("ModelPair", "SpeculationPolicy"))
    waiting, written = (total(text, f"slipstream_operator_{name}") for name in ("queue_depth", "writes_total"))
    return known == parents and not waiting and written > 0


def declare(kube: KubeApiServer, pairs: int) -> None:
    """Make the namespaces and the objects that users would."""
    for index in range(NAMESPACES):
        kube.namespace(f"team-{index}")

    def make(index: int) -> None:
        namespace, name = f"team-{index % NAMESPACES}", f"pair-{index:04}"
        client = kube.client()
        client.create(_KINDS[Kind.MODEL_PAIR].collection(namespace), pair(name))
        client.create(_KINDS[Kind.SPECULATION_POLICY].collection(namespace), policy(name))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(pairs)))


def pair(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": "ModelPair",
        "metadata": {"name": name},
        "spec": {
            "model": name,
            "engine": {"kind": "slipstream"},
            "target": {"source": "target"},
            "draft": {"kind": "model", "source": "draft"},
            "serving": {
                "gpus": 1,
                "resources": {"requests": {"cpu": "4", "memory": "16Gi"}},
                "storage": {"claim": "models"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            },
        },
    }


def policy(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": "SpeculationPolicy",
        "metadata": {"name": name},
        "spec": {"pair": name, "thresholds": {"acceptanceFloor": 0.6}},
    }


@contextmanager
def operator(args: argparse.Namespace, kube: KubeApiServer, redis: RedisServer) -> Iterator[tuple[psutil.Process, str]]:
    """A real `slipstream operator`, and the URL of its metrics."""
    liveness_port, metrics_port = lasting_ports(2)
    command = [args.python, "-m", "slipstream_tools.cli", "operator", "--host", "127.0.0.1"]
    command += ["--kubeconfig", str(kube.kubeconfig("admin")), "--resync", str(args.resync), "--log-level", "warning"]
    command += ["--redis", redis.url, "--workers", str(args.workers)]
    command += ["--liveness-port", str(liveness_port), "--metrics-port", str(metrics_port)]
    process = psutil.Popen(command)
    try:
        yield process, f"http://127.0.0.1:{metrics_port}/metrics"
    finally:
        process.terminate()
        process.wait(timeout=20)


def progress(kube: KubeApiServer) -> Progress:
    parents = [item for kind in (Kind.MODEL_PAIR, Kind.SPECULATION_POLICY) for item in all_of(kube, kind)]
    done = sum(
        (item.get("status") or {}).get("observedGeneration") == item["metadata"]["generation"] for item in parents
    )
    return Progress(done, sum(len(all_of(kube, kind)) for kind in child_kinds()))


def all_of(kube: KubeApiServer, kind: Kind) -> list[dict[str, Any]]:
    resource = _KINDS[kind]
    return kube.client().items(
        resource.collection(None), **({"labelSelector": resource.selector} if resource.selector else {})
    )


def resource_versions(kube: KubeApiServer) -> dict[str, str]:
    kinds = (Kind.MODEL_PAIR, Kind.SPECULATION_POLICY, *child_kinds())
    return {
        item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for kind in kinds for item in all_of(kube, kind)
    }


def writes(metrics_url: str) -> float:
    """The number of writes, without those that keep the operator's Lease of each namespace."""
    text = httpx.get(metrics_url, trust_env=False, timeout=30).text
    name = "slipstream_operator_writes_total"
    return total(text, name) - total(text, name, resource="leases")


def wait_for_quiet(metrics_url: str, steady_s: float) -> None:
    """Until nothing was written for twenty seconds, or for `steady_s` where that is less."""
    last, since = writes(metrics_url), time.monotonic()
    while time.monotonic() - since < min(20.0, steady_s):
        time.sleep(1)
        if (now := writes(metrics_url)) != last:
            last, since = now, time.monotonic()


def measure(args: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder, KubeApiServer(Path(folder)) as kube:
        install_chart(kube, CRDS)
        declare(kube, args.pairs)
        redis = RedisServer(Path(folder), *lasting_ports(1))
        try:
            with operator(args, kube, redis) as (process, metrics_url):
                watch(kube, process, metrics_url, args, report)
        finally:
            redis.kill()


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        pairs=Option(1000, 4, "ModelPairs, each with a policy"),
        steady=Option(60.0, 2.0, "seconds of quiet to watch"),
        resync=Option(50.0, 50.0, "the operator's resync in seconds"),
        workers=Option(WORKERS, WORKERS, "the operator's workers"),
        python=Option(sys.executable, sys.executable, "the operator's Python"),
    )
