"""The report of what a gateway goes by, as a Lease of a real API server."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.kube.client import KubeClient
from slipstream_core.manifest.reports import EVERY_PAIR, EXPIRES_S, REPORT_SELECTOR, read_report
from slipstream_core.settings import Pod
from slipstream_gateway.sources.cluster.reporting import Reporter, report_name

from tests.support.polling import soon


def _report(space: Any) -> Any:
    leases = space.client.items(
        f"/apis/coordination.k8s.io/v1/namespaces/{space.name}/leases", labelSelector=REPORT_SELECTOR
    )
    return read_report(leases[0]) if leases else None


@pytest.mark.usefixtures("patient_leave")
async def test_a_report_names_every_generation_and_goes_away_with_the_gateway(space: Any, watch: Any) -> None:
    pair, policy = space.pair("acme"), space.policy("slow", "acme")
    pod = Pod(name="gateway-0", uid="1-2-3")
    async with watch(space, pod=pod):
        report = await soon(lambda: _report(space), "the report is written")
        assert report.applied == {
            f"{space.name}/ModelPair/acme#{pair['metadata']['uid'][:8]}": 1,
            f"{space.name}/SpeculationPolicy/slow#{policy['metadata']['uid'][:8]}": 1,
        }
        assert report.namespaces == (space.name,)
        assert abs((datetime.now(UTC) - report.renewed).total_seconds()) < EXPIRES_S
        lease = space.reports()[0]
        assert lease["metadata"]["name"] == report_name(pod)
        assert lease["spec"]["leaseDurationSeconds"] == EXPIRES_S
        [owner] = lease["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "gateway-0", "1-2-3")
    assert not space.reports()


async def test_a_new_generation_is_reported_at_once_and_a_status_is_not(space: Any, watch: Any) -> None:
    space.pair("acme")
    key = f"{space.name}/ModelPair/acme"
    async with watch(space, renew_s=1000.0) as watched:
        first = await soon(lambda: _report(space), "the report is written")
        await asyncio.to_thread(
            space.client.patch_status,
            space.path("ModelPair", "acme"),
            {"conditions": [_condition("Ready", "False", "no server")]},
        )
        await soon(lambda: not watched.routes["acme"].status.ready, "the status is known")
        await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=True)
        report = await soon(
            lambda: (found := _report(space)).generation_of(key) == 2 and found, "the kill is confirmed"
        )
        assert report.renewed > first.renewed
        await asyncio.to_thread(space.client.delete, space.path("ModelPair", "acme"))
        await soon(lambda: not _report(space).applied, "the deleted pair is no longer named")


async def test_a_broken_version_counts_as_applied_since_its_kill_switch_is_obeyed(space: Any, watch: Any) -> None:
    space.pair("acme")
    async with watch(space, renew_s=1000.0):
        await asyncio.to_thread(space.patch, "ModelPair", "acme", maxDraftTokens="many", killSwitch=True)
        key = f"{space.name}/ModelPair/acme"
        await soon(lambda: (found := _report(space)) and found.generation_of(key) == 2, "confirmed")


async def test_a_pair_that_is_made_again_takes_its_namesakes_place(space: Any, watch: Any) -> None:
    key = f"{space.name}/ModelPair/acme"
    old = space.pair("acme")["metadata"]["uid"]
    space.patch("ModelPair", "acme", maxDraftTokens=3)
    async with watch(space, renew_s=1000.0):
        await soon(lambda: (found := _report(space)) and found.generation_of(key, old) == 2, "the first one")
        await asyncio.to_thread(space.client.delete, space.path("ModelPair", "acme"))
        new = (await asyncio.to_thread(space.pair, "acme"))["metadata"]["uid"]
        report = await soon(lambda: (found := _report(space)).generation_of(key, new) == 1 and found, "the second one")
        assert len(report.applied) == 1


async def test_a_report_is_renewed_and_comes_back_when_somebody_deletes_it(space: Any, watch: Any) -> None:
    async with watch(space, renew_s=0.1):
        first = await soon(lambda: _report(space), "the report is written")
        await soon(lambda: _report(space).renewed > first.renewed, "the report is renewed")
        await asyncio.to_thread(space.client.delete, _path(space))
        await soon(lambda: _report(space), "the report is back")


async def test_a_table_too_large_for_a_report_is_reported_as_far_as_it_goes_and_the_newest_first(space: Any) -> None:
    """An object's annotations hold 256 KiB. A kill is the newest change there is, so it is always in it."""
    applied = {f"{space.name}/ModelPair/{'x' * 40}-{index}": 1 for index in range(5000)}
    applied["killed"] = 2
    client = KubeClient(space.kubeconfig(), name="test")
    reporter = Reporter(client, namespace=space.name, namespaces=(), applied=lambda: applied, withheld=dict)
    task = asyncio.create_task(reporter.run())
    try:
        report = await soon(lambda: _report(space), "the report is written")
        assert report.generation_of("killed") == 2
        assert 1000 < len(report.applied) < 5000
    finally:
        task.cancel()
        await reporter.withdraw()
        await client.aclose()


async def test_leaving_never_fails_for_the_reports_sake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A kubeconfig that is no kubeconfig; what client to a cluster may raise is not a matter of a few types."""
    for number, text in enumerate(("- 1\n", "clusters: 5\ncontexts: 3\ncurrent-context: x\n", "a: [b\n")):
        kubeconfig = tmp_path / str(number)
        kubeconfig.write_text(text)
        client = KubeClient(kubeconfig, name="test")
        reporter = Reporter(client, namespace="default", namespaces=(), applied=dict, withheld=dict)
        with caplog.at_level(logging.INFO):
            await reporter.withdraw()
        await client.aclose()
        assert f"the report {reporter.name} could not be deleted" in caplog.text
        caplog.clear()


def test_reports_of_pods_on_one_host_and_of_workers_have_names_of_their_own() -> None:
    """Pods on a node's network all have the node's name."""
    pods = [Pod(name="a", uid="1"), Pod(name="b", uid="2"), None]
    assert len({report_name(pod) for pod in pods}) == 3
    own = multiprocessing.current_process()
    before = own.name
    try:
        own.name = "worker-0"
        first = report_name(pods[0])
        own.name = "worker-1"
        assert report_name(pods[0]) != first
        own.name = "worker-0"
        assert report_name(pods[0]) == first
    finally:
        own.name = before


def _path(space: Any) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{space.name}/leases/{report_name(None)}"


def _condition(kind: str, status: str, message: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def test_the_first_use_of_a_pair_that_scales_to_zero_is_reported_at_once(space: Any, watch: Any) -> None:
    """Else the operator could remove its servers just then."""
    key = f"{space.name}/acme"
    async with watch(space, renew_s=1000.0) as watched:
        await soon(lambda: _report(space), "the report is written")
        watched.fleet.use.begin(key, announced=True)
        await soon(lambda: _report(space).in_use == (f"{space.name}/ModelPair/acme",), "it is in use")
        watched.fleet.use.end(key)
        with watched.fleet.use.held("other/pair"):
            await soon(lambda: _report(space).waiting == ("other/ModelPair/pair",), "a request waits")
        await soon(lambda: not _report(space).waiting, "no request waits")


async def test_a_report_without_room_for_all_pairs_in_use_says_so(space: Any, watch: Any) -> None:
    async with watch(space, renew_s=1000.0) as watched:
        for number in range(200):
            watched.fleet.use.begin(f"{'n' * 60}/{number:0100d}")
        watched.fleet.use.begin("z/last", announced=True)
        report = await soon(lambda: found if (found := _report(space)) and found.in_use else None, "they are in use")
        assert report.in_use[-1] == EVERY_PAIR
        assert 50 < len(report.in_use) < 200
