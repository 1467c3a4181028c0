"""The rights that a gateway needs, no more: those of the chart's Role, tried on a real API server with RBAC."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.kube import once_allowed
from tests.support.polling import soon

_READ = ["get", "list", "watch"]
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def _grant(space: Any, *rules: dict[str, list[str]]) -> None:
    role = {"metadata": {"name": "gateway"}, "rules": list(rules)}
    space.client.create(f"{_RBAC}/namespaces/{space.name}/roles", role)
    binding = {
        "metadata": {"name": "gateway"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gateway"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "gateway"}],
    }
    space.client.create(f"{_RBAC}/namespaces/{space.name}/rolebindings", binding)
    once_allowed(lambda: space.server.client("gateway").items(space.path("ModelPair")))


def _rule(group: str, *resources: str, verbs: list[str]) -> dict[str, list[str]]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": verbs}


KINDS = _rule("slipstream.dev", "modelpairs", "speculationpolicies", verbs=_READ)
SLICES = _rule("discovery.k8s.io", "endpointslices", verbs=_READ)
LEASES = _rule("coordination.k8s.io", "leases", verbs=["get", "create", "update", "patch", "delete"])


@pytest.mark.usefixtures("patient_leave")
async def test_the_rights_of_the_charts_role_are_enough(space: Any, watch: Any) -> None:
    _grant(space, KINDS, SLICES, LEASES)
    space.pair("acme")
    async with watch(space, user="gateway") as watched:
        assert watched.source.status().connected
        await soon(space.reports, "the report is written")
        await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=True)
        await soon(lambda: watched.routes["acme"].killed, "the kill")
    assert not space.reports()


async def test_without_the_right_to_report_it_serves_all_the_same(
    space: Any, watch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _grant(space, KINDS, SLICES)
    space.pair("acme")
    async with watch(space, user="gateway") as watched:
        await soon(lambda: "report cannot be written" in caplog.text, "it is said")
        assert watched.source.status().connected, "the server answers, though with a no"
        await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=True)
        await soon(lambda: watched.routes["acme"].killed, "the kill")
    assert caplog.text.count("report cannot be written") == 1


async def test_a_namespace_without_rights_does_not_keep_the_others_from_being_served(
    space: Any, new_space: Any, watch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    closed = new_space(space.server)
    _grant(space, KINDS, SLICES, LEASES)
    space.pair("acme")
    closed.pair("hidden")
    async with watch(space, closed, user="gateway") as watched:
        assert set(watched.routes) == {"acme"}
        assert not watched.source.status().connected
        assert "forbidden" in caplog.text
        assert watched.fleet.current.incomplete, "what is missing is not the client's mistake"


async def test_a_kill_is_obeyed_where_nothing_may_be_known_of_the_servers(space: Any, watch: Any) -> None:
    """The pair is then reached by its Service's name."""
    _grant(space, KINDS, LEASES)
    space.triton_pair("acme")
    async with watch(space, user="gateway") as watched:
        assert watched.routes["acme"].plain.endpoints == (f"grpc://slipstream-acme.{space.name}.svc:8001",)
        await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=True)
        await soon(lambda: watched.routes["acme"].killed, "the kill")
