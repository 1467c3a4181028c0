"""Requests for a pair that scales to zero wait for its first server. The API server and the gateway are real."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from slipstream_core.manifest.reports import read_report
from slipstream_core.settings import ClusterSettings, Deadlines, GatewaySettings, Limits

from tests.gateway.pair_manifest import chat
from tests.support.polling import PATIENCE_S, eventually
from tests.support.speed import SLOWNESS

PAIR_KEY = "{}/ModelPair/acme"


def _settings(space: Any, **options: Any) -> GatewaySettings:
    cluster = ClusterSettings(kubeconfig=space.kubeconfig(), namespaces=(space.name,), report_namespace=space.name)
    return GatewaySettings(cluster=cluster, deadlines=Deadlines(connect_s=15.0), **options)


@pytest.fixture
def sleeping(space: Any) -> Callable[..., None]:
    """Creates a pair of vLLM that has no server, with `autoscaling`."""

    def create(name: str = "acme", **autoscaling: Any) -> None:
        parts = {"target": {"source": "acme/target"}, "draft": {"kind": "ngram"}, "engine": {"kind": "vllm"}}
        scaling = {"minReplicas": 0, "maxReplicas": 2, **autoscaling}
        space.create("ModelPair", name, {"model": name, **parts, "serving": {"autoscaling": scaling}})

    return create


@pytest.fixture
def wake(space: Any, openai_server: Any) -> Callable[[], None]:
    """Gives the pair its first server, as the EndpointSlice controller does."""

    def start() -> None:
        port = int(openai_server().url.rpartition(":")[2])
        labels = {"kubernetes.io/service-name": "slipstream-acme", "app.kubernetes.io/part-of": "slipstream"}
        space.client.create(
            f"/apis/discovery.k8s.io/v1beta1/namespaces/{space.name}/endpointslices",
            {
                "metadata": {"name": "acme-1", "labels": labels},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": port}],
                "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
            },
        )

    return start


def _waiting(space: Any) -> list[str]:
    return [pair for lease in space.reports() if (report := read_report(lease)) for pair in report.waiting]


def _in_use(space: Any) -> list[str]:
    return [pair for lease in space.reports() if (report := read_report(lease)) for pair in report.in_use]


def test_requests_wait_until_the_first_server_is_ready(space: Any, serve: Any, sleeping: Any, wake: Any) -> None:
    sleeping()
    gateway = serve(_settings(space))

    def ask(stream: bool) -> httpx.Response:
        body = chat("tokens=3", stream=stream)
        return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)

    with ThreadPoolExecutor(2) as clients:
        began_s = time.monotonic()
        whole, stream = (clients.submit(ask, kind) for kind in (False, True))
        eventually(lambda: _waiting(space) == [PAIR_KEY.format(space.name)], "the report has the pair")
        reported_s = time.monotonic() - began_s
        assert _in_use(space) == [PAIR_KEY.format(space.name)]
        assert gateway.metric("slipstream_cold_start_waiting", pair=f"{space.name}/acme") == 2
        assert not any(answer.done() for answer in (whole, stream))
        wake()
        assert [whole.result().status_code, stream.result().status_code] == [200, 200]
        assert stream.result().text.endswith("data: [DONE]\n\n")
    eventually(lambda: _waiting(space) == [], "no request waits")
    assert reported_s < 2.0 * SLOWNESS
    assert "models" not in httpx.get(f"{gateway.url}/health/ready").json()


def test_a_request_waits_for_a_limited_time(space: Any, serve: Any, sleeping: Any) -> None:
    sleeping(coldStartSeconds=1)
    gateway = serve(_settings(space))
    reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=3", stream=True))
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "10"
    assert reply.json()["error"]["message"] == "No server for the model 'acme' was ready within 1 s."


def test_a_clients_deadline_ends_its_wait(space: Any, serve: Any, sleeping: Any) -> None:
    sleeping()
    gateway = serve(_settings(space))
    headers = {"x-request-timeout": "0.5"}
    reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=3"), headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_a_limited_number_of_requests_waits_for_each_pair(space: Any, serve: Any, sleeping: Any, wake: Any) -> None:
    sleeping()
    sleeping("other")
    gateway = serve(_settings(space, limits=Limits(max_queued=2)))

    def ask(model: str) -> httpx.Response:
        body = {**chat("tokens=3"), "model": model}
        return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)

    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(ask, "acme")
        eventually(lambda: _waiting(space), "a request waits")
        second = ask("acme")
        assert (second.status_code, second.headers["retry-after"]) == (503, "10")
        message = "No server for the model 'acme' is up yet, and at most 1 requests may wait for it."
        assert second.json()["error"]["message"] == message
        others = clients.submit(ask, "other")
        eventually(lambda: len(_waiting(space)) == 2, "a request of the other pair waits, too")
        wake()
        assert first.result().status_code == 200
        space.client.delete(space.path("ModelPair", "other"))
        assert others.result().status_code == 404


def test_a_client_that_leaves_no_longer_waits(space: Any, serve: Any, sleeping: Any) -> None:
    sleeping()
    gateway = serve(_settings(space))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=3"), timeout=0.5)
    eventually(lambda: _waiting(space) == [], "no request waits")
    assert _in_use(space) == [PAIR_KEY.format(space.name)]


def test_the_deletion_of_the_pair_ends_the_wait(space: Any, serve: Any, sleeping: Any) -> None:
    sleeping()
    gateway = serve(_settings(space))
    with ThreadPoolExecutor(1) as clients:
        reply = clients.submit(
            httpx.post, f"{gateway.url}/v1/chat/completions", json=chat("tokens=3"), timeout=PATIENCE_S
        )
        eventually(lambda: _waiting(space), "a request waits")
        space.client.delete(space.path("ModelPair", "acme"))
        assert reply.result().status_code == 404


def test_pairs_that_do_not_scale_to_zero_fail_at_once(space: Any, serve: Any, sleeping: Any) -> None:
    sleeping(minReplicas=1)
    gateway = serve(_settings(space))
    began_s = time.monotonic()
    reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=3"), timeout=PATIENCE_S)
    assert reply.status_code == 503
    assert time.monotonic() - began_s < 60.0  # one that scales to zero would wait for minutes
    assert json.loads(reply.text)["error"]["message"] == "No server for the model 'acme' is up."


def test_a_vanished_api_server_hangs_no_request(outages: Any, new_space: Any, serve: Any) -> None:
    space = new_space(outages)
    parts = {"target": {"source": "acme/target"}, "draft": {"kind": "ngram"}, "engine": {"kind": "vllm"}}
    scaling = {"minReplicas": 0, "maxReplicas": 2, "coldStartSeconds": 2}
    space.create("ModelPair", "acme", {"model": "acme", **parts, "serving": {"autoscaling": scaling}})
    gateway = serve(_settings(space))
    outages.stop()
    began_s = time.monotonic()
    reply = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=3"), timeout=PATIENCE_S)
    assert reply.status_code == 503
    assert time.monotonic() - began_s >= 2.0
