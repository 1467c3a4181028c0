"""The API server is gone, under load."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import yaml
from slipstream_core.manifest import EMBEDDED_MANIFEST

from tests.e2e.chaos.asks import MODEL, Ask
from tests.e2e.chaos.load import Load
from tests.e2e.chaos.processes import Gateway
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.world import Scale, World
from tests.support.kube import CRDS, KubeApiServer, install_chart
from tests.support.manifests import JSON
from tests.support.ports import lasting_ports

NAMESPACE = "chaos"
CLIENTS = 2
_ROUTE_LIMIT_S = 30.0
_PAIR = f"/apis/slipstream.dev/v1alpha1/namespaces/{NAMESPACE}/modelpairs/embedded"


def cluster_faults(world: World, scale: Scale) -> Iterator[Reading]:
    """A gateway that takes its manifest from a real API server, before the same Triton replicas."""
    with KubeApiServer(world.folder / "kube") as kube:
        install_chart(kube, CRDS)
        kube.namespace(NAMESPACE)
        kube.client().apply_yaml(list(_objects(world, kube)), namespace=NAMESPACE)
        with _gateway(world, kube) as gateway:
            yield _api_server_gone(world, kube, gateway, scale.api_server_gone_s)


def _api_server_gone(world: World, kube: KubeApiServer, gateway: Gateway, seconds: float) -> Reading:
    with Load([gateway.url], _any_arm(world), clients=CLIENTS) as load:
        load.wait_answers(CLIENTS)
        kube.stop(signal.SIGKILL)
        time.sleep(seconds)
        kube.start()
        kube.client().patch(_PAIR, {"spec": {"killSwitch": True}})
        back_s = time.monotonic()
        load.wait(lambda: _is_killed(gateway), "the kill after it", within_s=_ROUTE_LIMIT_S)
        heard_s = time.monotonic() - back_s
        kube.client().patch(_PAIR, {"spec": {"killSwitch": None}})
    tally = world.tally(load)
    return Reading(
        fault=f"API server gone {seconds:g} s",
        goal="0 failed requests; hears the cluster again",
        measured=f"{tally.requests} requests: {tally.summary()}; a kill after it is heard in {heard_s:.1f} s",
        passed=tally.unacceptable == 0,
        figures={**tally.counts, "heard_s": heard_s},
        notes=tuple(tally.examples()),
    )


@contextmanager
def _gateway(world: World, kube: KubeApiServer) -> Iterator[Gateway]:
    gateway = Gateway(
        name="cluster-gateway",
        folder=world.folder,
        port=lasting_ports(1)[0],
        source=(
            *("--source", "kubernetes", "--kubeconfig", str(kube.kubeconfig(namespace=NAMESPACE))),
            *("--namespace", NAMESPACE, "--report-namespace", NAMESPACE),
            *("--snapshot", str(world.folder / "cluster-gateway.snapshot")),
        ),
        options=("--allow-endpoint", "127.0.0.0/8"),  # in a cluster no server is at the loopback
    )
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


def _is_killed(gateway: Gateway) -> bool:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Is it?"}]}
    answer = httpx.post(f"{gateway.url}/v1/route", json=body, timeout=_ROUTE_LIMIT_S, trust_env=False)
    return bool(answer.json()["reason"] == "kill_switch")


def _objects(world: World, kube: KubeApiServer) -> Iterator[JSON]:
    """The pair and its policy, and where the replicas are, as the controllers of a cluster write it."""
    yield from yaml.safe_load_all(EMBEDDED_MANIFEST.read_text())
    slices = kube.client().get("/apis/discovery.k8s.io")["preferredVersion"]["groupVersion"]
    labels = {"kubernetes.io/service-name": "slipstream-embedded", "app.kubernetes.io/part-of": "slipstream"}
    for number, replica in enumerate(world.replicas):
        yield {
            "apiVersion": slices,
            "kind": "EndpointSlice",
            "metadata": {"name": f"slipstream-embedded-{number}", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [replica.ports.host], "conditions": {"ready": True}}],
            "ports": [{"name": "grpc", "port": replica.ports.grpc, "protocol": "TCP"}],
        }


def _any_arm(world: World) -> list[Ask]:
    """What is asked where a request may be decoded by either arm: a sampled answer differs between them."""
    return [ask for ask in world.recorded.asks if "sampled speculative" not in ask.name]
