"""The images of the gateway and of the operator: built from their files, and started as the chart's pods start them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.charts.conftest import Only, Render
from tests.charts.release import EXAMPLE, Release, answers, until
from tests.support import images
from tests.support.http_server import Asked, Reply, answering
from tests.support.images import Image
from tests.support.kube import KubeApiServer
from tests.support.manifests import manifest

# Ten minutes, root, and the network: `make test-slow` alone.
pytestmark = [pytest.mark.slow(in_quarters=False), pytest.mark.timeout(1800)]

MIB = 1024 * 1024
# The size of all files of an image, Debian's included.
LARGEST_MIB = {"gateway": 600, "capture": 800, "operator": 420}
SITE_PACKAGES = "opt/slipstream/lib/python3.11/site-packages"


def _built(name: str, *arguments: str) -> Iterator[Image]:
    tag = f"slipstream-test-{name}"
    images.build("gateway" if name == "capture" else name, *arguments, tag=tag)
    image = Image(tag)
    yield image
    image.remove()


@pytest.fixture(scope="module")
def gateway_image() -> Iterator[Image]:
    yield from _built("gateway")


@pytest.fixture(scope="module")
def capture_image(gateway_image: Image) -> Iterator[Image]:
    yield from _built("capture", "--build-arg=CAPTURE=yes")


@pytest.fixture(scope="module")
def operator_image() -> Iterator[Image]:
    yield from _built("operator")


@pytest.fixture
def release(
    kube: KubeApiServer, crds: object, namespace: str, render: Render, only: Only, tmp_path: Path
) -> Iterator[Release]:
    objects = render({"watchNamespaces": [namespace]}, namespace=namespace)
    started = Release(kube, objects, only, namespace, tmp_path)
    with started.processes:
        yield started


@pytest.fixture
def server() -> Iterator[str]:
    message = {"role": "assistant", "content": "hello"}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()

    def answer(_: Asked) -> Reply:
        return Reply(body=body, headers={"content-type": "application/json"})

    with answering(answer) as url:
        yield url


def test_a_gateways_pod_serves_a_pair_of_the_cluster(
    gateway_image: Image, release: Release, kube: KubeApiServer, free_ports: Callable[[int], list[int]], server: str
) -> None:
    arm = {"protocol": "openai", "model": "m", "endpoints": [server]}
    pairs = f"/apis/slipstream.dev/v1alpha1/namespaces/{release.namespace}/modelpairs"
    spec = {"model": "acme", "engine": {"kind": "external", "arms": {"plain": arm}}}
    kube.client().create(pairs, manifest("ModelPair", "acme", spec))
    [port] = free_ports(1)
    gateway = release.start("gateway", image=gateway_image, port=port)
    models = answers(f"http://127.0.0.1:{port}/v1/models")
    until(lambda: (found := models()) and '"acme"' in found["text"], gateway)
    chat = {"model": "acme", "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=chat, timeout=60)
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert "forbidden" not in gateway.log_tail(lines=1000)
    gateway.stop(timeout_s=10)
    assert gateway.exit_status() == "exited with code 0"


def test_a_gateways_decisions_are_compiled(gateway_image: Image) -> None:
    decide = gateway_image.root / SITE_PACKAGES / "slipstream_gateway" / "decide"
    assert list(decide.glob("route/*.so"))
    assert list(decide.glob("classify/_row_sum*.so"))


def test_only_the_image_for_captures_can_capture(
    gateway_image: Image, capture_image: Image, release: Release, free_ports: Callable[[int], list[int]]
) -> None:
    pod = release.pods("gateway")["spec"]
    [port] = free_ports(1)

    def start(image: Image) -> Any:
        arguments = ["gateway", "--allow-anonymous", "--manifest=/pair.yaml", "--host=127.0.0.1", f"--port={port}"]
        child = image.start(
            pod,
            [*arguments, "--capture-store=/tmp/captures"],
            folder=release.folder,
            files={"/pair.yaml": EXAMPLE.parent / "external-vllm.yaml"},
        )
        release.processes.callback(child.stop, timeout_s=10.0)
        return child

    refused = start(gateway_image)
    assert refused.wait(60)
    assert "--capture-store needs the package 'pyarrow'" in refused.log_tail(lines=10)
    live = answers(f"http://127.0.0.1:{port}/health/live")
    until(lambda: (found := live()) and found["status"] == 200, start(capture_image))


def test_an_operators_pod_makes_children_and_writes_status(
    operator_image: Image, release: Release, kube: KubeApiServer, free_ports: Callable[[int], list[int]]
) -> None:
    liveness, metrics = free_ports(2)
    operator = release.start("operator", image=operator_image, liveness_port=liveness, metrics_port=metrics)
    kube.kubectl("apply", "--filename", str(EXAMPLE), namespace=release.namespace)
    client = kube.client()
    child = f"/apis/apps/v1/namespaces/{release.namespace}/deployments/slipstream-embedded"
    until(lambda: client.exists(child), operator)
    pair = f"/apis/slipstream.dev/v1alpha1/namespaces/{release.namespace}/modelpairs/embedded"
    until(lambda: client.get(pair).get("status", {}).get("state"), operator)
    live = answers(f"http://127.0.0.1:{liveness}/healthz")
    until(lambda: (found := live()) and found["status"] == 200, operator)
    assert "forbidden" not in operator.log_tail(lines=1000)


@pytest.mark.parametrize("name", sorted(LARGEST_MIB))
def test_an_image_is_no_larger_than_it_was(name: str, request: pytest.FixtureRequest) -> None:
    image: Image = request.getfixturevalue(f"{name}_image")
    assert image.size_bytes() < LARGEST_MIB[name] * MIB
    assert not list(image.root.glob(f"{SITE_PACKAGES}/pip*"))


def test_a_second_build_is_equal(operator_image: Image) -> None:
    [again] = _built("operator", "--no-cache")
    assert again.config == operator_image.config
    assert again.layers == operator_image.layers
