"""The report of what a gateway goes by, as a Lease of a real API server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
from slipstream_gateway.cluster.access import Access
from slipstream_gateway.cluster.reporting import Reporter, report_name
from slipstream_gateway.manifest.reports import EXPIRES_S, REPORT_SELECTOR, read_report
from slipstream_gateway.settings import Pod


def _report(space: Any) -> Any:
    leases = space.client.items(
        f"/apis/coordination.k8s.io/v1/namespaces/{space.name}/leases", labelSelector=REPORT_SELECTOR
    )
    return read_report(leases[0]) if leases else None


async def test_a_report_names_every_generation_and_goes_away_with_the_gateway(
    space: Any, watch: Any, soon: Any
) -> None:
    space.pair("acme")
    space.policy("slow", "acme")
    async with watch(space, pod=Pod(name="gateway-0", uid="1-2-3")):
        report = await soon(lambda: _report(space), "the report is written")
        assert report.applied == {f"{space.name}/ModelPair/acme": 1, f"{space.name}/SpeculationPolicy/slow": 1}
        assert report.namespaces == (space.name,)
        assert report.is_alive(datetime.now(UTC))
        lease = space.reports()[0]
        assert lease["metadata"]["name"] == report_name()
        assert lease["spec"]["leaseDurationSeconds"] == EXPIRES_S
        [owner] = lease["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "gateway-0", "1-2-3")
    assert not space.reports()


async def test_a_new_generation_is_reported_at_once_and_a_status_is_not(space: Any, watch: Any, soon: Any) -> None:
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
        report = await soon(lambda: (found := _report(space)).applied[key] == 2 and found, "the kill is confirmed")
        assert report.renewed > first.renewed
        await asyncio.to_thread(space.client.delete, space.path("ModelPair", "acme"))
        await soon(lambda: key not in _report(space).applied, "the deleted pair is no longer named")


async def test_a_broken_version_counts_as_applied_since_its_kill_switch_is_obeyed(
    space: Any, watch: Any, soon: Any
) -> None:
    space.pair("acme")
    async with watch(space, renew_s=1000.0):
        await asyncio.to_thread(space.patch, "ModelPair", "acme", maxDraftTokens="many", killSwitch=True)
        await soon(lambda: (_report(space) or _EMPTY).applied.get(f"{space.name}/ModelPair/acme") == 2, "confirmed")


async def test_a_report_is_renewed_and_comes_back_when_somebody_deletes_it(space: Any, watch: Any, soon: Any) -> None:
    async with watch(space, renew_s=0.1):
        first = await soon(lambda: _report(space), "the report is written")
        await soon(lambda: _report(space).renewed > first.renewed, "the report is renewed")
        await asyncio.to_thread(space.client.delete, _path(space))
        await soon(lambda: _report(space), "the report is back")


async def test_a_table_too_large_for_a_report_is_reported_as_far_as_it_goes_and_the_newest_first(
    space: Any, soon: Any
) -> None:
    """An object's annotations hold 256 KiB. A kill is the newest change there is, so it is always in it."""
    applied = {f"{space.name}/ModelPair/{'x' * 40}-{index}": 1 for index in range(5000)}
    applied["killed"] = 2
    access = Access(space.kubeconfig())
    reporter = Reporter(access, namespace=space.name, namespaces=(), applied=lambda: applied)
    task = asyncio.create_task(reporter.run())
    try:
        report = await soon(lambda: _report(space), "the report is written")
        assert report.generation_of("killed") == 2
        assert 1000 < len(report.applied) < 5000
    finally:
        task.cancel()
        await reporter.withdraw()
        await access.aclose()


def _path(space: Any) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{space.name}/leases/{report_name()}"


def _condition(kind: str, status: str, message: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


class _NoReport(msgspec.Struct):
    applied: dict[str, int] = {}


_EMPTY = _NoReport()
