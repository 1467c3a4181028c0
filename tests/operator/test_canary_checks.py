"""Checks of a new revision by webhooks and queries: what passes, fails and is no result. All servers are real."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.endpoint_rules import EndpointRules
from slipstream_core.manifest.canary_checks import CanaryCheck, PrometheusQuery, Webhook
from slipstream_core.manifest.naming import canary_name
from slipstream_core.manifest.status import CanaryPhase, CanaryStatus
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.rollout.canary import CheckResult
from slipstream_operator.rollout.checks import CanaryChecks

from tests.operator.operator_process import OperatorProcess, grant
from tests.support.http_server import Asked, Reply, answering
from tests.support.kube import KubeApiServer
from tests.support.polling import eventually, soon

KEY = ObjectKey(Kind.MODEL_PAIR, "prod", "acme")
STATUS = CanaryStatus(revision="new", serving="old", phase=CanaryPhase.COMPARING)
HERE = EndpointRules()


@contextlib.asynccontextmanager
async def polling(*checks: CanaryCheck, rules: EndpointRules = HERE) -> AsyncIterator[CanaryChecks]:
    found = CanaryChecks(rules=rules, changed=lambda key: None)
    running = asyncio.create_task(found.run())
    found.follow(KEY, STATUS, checks)
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def first_result(check: CanaryCheck, rules: EndpointRules = HERE) -> CheckResult:
    """The result of the first look at `check`."""
    async with polling(check, rules=rules) as checks:
        await soon(lambda: checks.results(KEY)[0] != CheckResult(check.name))
        return checks.results(KEY)[0]


def webhook(url: str, **more: Any) -> CanaryCheck:
    return CanaryCheck(name="smoke", webhook=Webhook(url=url), **more)


def query(address: str, text: str, **bounds: float) -> CanaryCheck:
    return CanaryCheck(name="errors", prometheus=PrometheusQuery(address=address, query=text, **bounds))


@pytest.mark.parametrize(
    ("status", "passed"),
    [(200, True), (204, True), (400, False), (404, False), (500, False), (301, None), (429, None), (503, None)],
)
async def test_a_webhook_answers_by_its_status(status: int, passed: bool | None) -> None:
    asked: list[Asked] = []

    def answer(request: Asked) -> Reply:
        asked.append(request)
        return Reply(status, headers={"location": "http://127.0.0.1:1/"})

    with answering(answer) as url:
        found = await first_result(webhook(f"{url}/gate"))
    assert (found.passed, found.failures, found.detail) == (passed, int(passed is False), f"status {status}")
    assert [(one.method, one.path) for one in asked] == [("POST", "/gate")]
    facts = {"check": "smoke", "namespace": "prod", "pair": "acme", "revision": "new", "serving": "old"}
    assert json.loads(asked[0].body) == facts


async def test_failures_in_a_row_are_counted_and_no_result_is_none() -> None:
    statuses = iter([500, 503, 500, 200, 500])
    with answering(lambda _: Reply(next(statuses, 200))) as url:
        check = webhook(url, interval_seconds=1)
        seen: list[CheckResult] = []
        async with polling(check) as checks:

            def has_all() -> bool:
                if (found := checks.results(KEY)[0]) not in seen[-1:]:
                    seen.append(found)
                return len(seen) == 6

            await soon(has_all)
    assert [(one.passed, one.failures) for one in seen[1:]] == [
        (False, 1),
        (None, 1),
        (False, 2),
        (True, 0),
        (False, 1),
    ]


async def test_a_service_that_is_down_or_silent_is_no_result_and_stops_no_other_check(free_ports: Any) -> None:
    [port] = free_ports(1)
    down, silent = webhook(f"http://127.0.0.1:{port}"), threading_hang()
    with silent as url, answering(lambda _: Reply(200)) as other:
        checks = (
            down,
            CanaryCheck(name="silent", webhook=Webhook(url=url), timeout_seconds=1),
            CanaryCheck(name="other", webhook=Webhook(url=other)),
        )
        async with polling(*checks) as found:
            began_s = time.monotonic()
            await soon(lambda: all(one.detail != CheckResult("").detail for one in found.results(KEY)))
            assert time.monotonic() - began_s < 30.0
            results = {one.name: one for one in found.results(KEY)}
    assert (results["smoke"].passed, results["smoke"].failures) == (None, 0)
    assert "Connect call failed" in results["smoke"].detail
    assert (results["silent"].passed, results["silent"].detail) == (None, "no answer in time")
    assert results["other"].passed is True


@contextlib.contextmanager
def threading_hang() -> Iterator[str]:
    def answer(_: Asked) -> Reply:
        time.sleep(3.0)
        return Reply(200)

    with answering(answer) as url:
        yield url


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://localhost:9/", "http://127.0.0.1:9/"])
async def test_addresses_that_a_manifest_may_not_name_are_never_asked(url: str) -> None:
    found = await first_result(webhook(url), EndpointRules(shared=True))
    assert found.passed is None
    assert "metadata" in found.detail or "loopback" in found.detail


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, free_ports: Any) -> Iterator[str]:
    """A Prometheus without targets: queries of constants have values."""
    folder, [port] = tmp_path_factory.mktemp("prometheus"), free_ports(1)
    (folder / "prometheus.yml").write_text("{}")
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    server = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/-/ready").status_code == httpx.codes.OK
        return False

    try:
        eventually(is_ready, "Prometheus is ready")
        yield url
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize(
    ("text", "bounds", "passed", "detail"),
    [
        ("vector(0.98)", {"min": 0.95}, True, "0.98"),
        ("vector(0.3)", {"min": 0.95}, False, "0.3 is below 0.95"),
        ("scalar(vector(7))", {"max": 5.0}, False, "7 is above 5"),
        ("scalar(vector(7))", {"min": 1.0, "max": 9.0}, True, "7"),
        ('label_replace(vector(1), "a", "$(revision)", "", "") or vector(9)', {"max": 5.0}, False, "9 is above 5"),
        ('absent(up{pod=~"canary-$(revision).*"}) * 0', {"max": 0.0}, True, "0"),
        ("up", {"min": 1.0}, None, "the query has no data"),
        ("vector(0) / 0", {"min": 1.0}, None, "the query has no data"),
        ("vector(", {"min": 1.0}, None, "Prometheus responded with status 400"),
        ("up[5m]", {"min": 1.0}, None, "the response is not that of a query"),
    ],
)
async def test_a_query_passes_if_all_values_are_within_bounds(
    prometheus: str, text: str, bounds: dict[str, float], passed: bool | None, detail: str
) -> None:
    found = await first_result(query(prometheus, text, **bounds))
    assert (found.passed, found.detail) == (passed, detail)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": {"resultType": "vector", "result": [{}]}}', b"x" * 1_000_000])
async def test_an_answer_that_is_not_prometheus_is_no_result(body: bytes) -> None:
    with answering(lambda _: Reply(200, body)) as url:
        assert (await first_result(query(url, "up", min=1.0))).passed is None


async def test_the_results_of_another_revision_do_not_count() -> None:
    with answering(lambda _: Reply(200)) as url:
        check = webhook(url)
        async with polling(check) as checks:
            await soon(lambda: checks.results(KEY)[0].passed is True)
            checks.follow(KEY, STATUS, (check,))
            assert checks.results(KEY)[0].passed is True
            checks.follow(KEY, CanaryStatus(revision="newer", phase=CanaryPhase.COMPARING), (check,))
            assert checks.results(KEY)[0].passed is None
            checks.end(KEY)
            assert checks.results(KEY) == ()


def test_an_operator_takes_a_revision_back_whose_check_fails(
    kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path
) -> None:
    cluster, asked = grant(kube, namespace), []

    def refuse(request: Asked) -> Reply:
        asked.append(json.loads(request.body))
        return Reply(403)

    def ready(name: str) -> None:
        eventually(lambda: cluster.get("deployments", name), f"the Deployment {name}")
        counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), 1)
        cluster.client.patch_status(cluster.path("deployments", name), {"observedGeneration": 1, **counts})

    def canary() -> dict[str, Any]:
        return ((cluster.get("modelpairs", "acme") or {}).get("status") or {}).get("canary") or {}

    with answering(refuse) as url, OperatorProcess(kube, namespace, tmp_path) as operator:
        operator.wait_ready()
        check = {"name": "smoke", "webhook": {"url": url}, "intervalSeconds": 1, "failures": 2}
        cluster.pair("acme")
        cluster.wait_condition("modelpairs", "acme", "Accepted", "True")
        cluster.patch("modelpairs", "acme", {"spec": {"serving": {"update": {"canary": {"checks": [check]}}}}})
        ready("slipstream-acme")
        cluster.wait_condition("modelpairs", "acme", "Ready", "True")
        cluster.patch("modelpairs", "acme", {"spec": {"maxDraftTokens": 4}})
        eventually(lambda: canary().get("phase") == "Starting", "a new revision")
        ready(canary_name("acme", canary()["revision"]))
        eventually(lambda: canary().get("phase") == "RolledBack", "it is taken back", seen=canary)
        assert canary()["rule"] == "CheckFailed"
        assert canary()["message"].startswith("the check smoke failed 2 times in a row: status 403")
        assert {one["revision"] for one in asked} == {canary()["revision"]}
        time.sleep(1.5)
        count = len(asked)
        time.sleep(2.0)
        assert len(asked) == count, "checks end with the comparison"
