"""How far a spec has come, by the gateways' reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from slipstream_core.manifest.reports import (
    EVERY_PAIR,
    EXPIRES_S,
    IN_USE_ANNOTATION,
    UNREACHABLE_ANNOTATION,
    WITHHELD_ANNOTATION,
    GatewayReport,
    UnreachableServers,
    WithheldServer,
    applied_key,
    read_report,
    report_lease,
)
from slipstream_core.manifest.status import GatewaysStatus
from slipstream_operator.cluster.gateway_reports import GatewayReports
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.types import Demand

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAIR = ObjectKey(Kind.MODEL_PAIR, "team", "acme")


def lease_key(name: str) -> ObjectKey:
    return ObjectKey(Kind.LEASE, "slipstream", name)


def put(
    gateways: GatewayReports,
    name: str,
    applied: dict[str, int],
    *,
    at: datetime = NOW,
    namespaces: tuple[str, ...] = (),
    withheld: tuple[WithheldServer, ...] = (),
    **used: tuple[str, ...],
) -> set[str] | None:
    of_pairs = {str(PAIR): withheld} if withheld else {}
    report = GatewayReport(name=name, namespaces=namespaces, applied=applied, renewed=at, withheld=of_pairs, **used)
    lease: dict[str, Any] = report_lease(report, namespace="slipstream")
    return gateways.put(lease_key(name), lease, at)


def test_only_gateways_that_watch_the_namespace_count() -> None:
    gateways = GatewayReports()
    put(gateways, "a", {str(PAIR): 4})
    put(gateways, "b", {str(PAIR): 3}, namespaces=("team",))
    put(gateways, "c", {}, namespaces=("other",))
    assert gateways.status_of(PAIR, 4) == GatewaysStatus(synced=1, total=2, oldest_generation=3)
    assert gateways.status_of(PAIR, 3) == GatewaysStatus(synced=2, total=2, oldest_generation=3)


def test_gateway_that_does_not_know_the_object_is_not_synced() -> None:
    gateways = GatewayReports()
    put(gateways, "a", {})
    assert gateways.status_of(PAIR, 1) == GatewaysStatus(synced=0, total=1, oldest_generation=0)


def test_report_of_a_namesake_that_is_gone_is_no_confirmation() -> None:
    """An object that was deleted and made again begins with generation 1."""
    gateways = GatewayReports()
    put(gateways, "a", {applied_key(str(PAIR), "0d9e53a2-77"): 7})
    put(gateways, "b", {applied_key(str(PAIR), "aaaaaaaa-11"): 2})
    put(gateways, "older-version", {str(PAIR): 7})
    assert gateways.status_of(PAIR, 2, "aaaaaaaa-11") == GatewaysStatus(synced=1, total=3, oldest_generation=0)
    renewed = {applied_key(str(PAIR), "aaaaaaaa-11"): 2}
    assert put(gateways, "a", renewed) == {str(PAIR)}
    assert gateways.status_of(PAIR, 2, "aaaaaaaa-11").synced == 2


def test_without_gateways_nothing_is_said() -> None:
    assert GatewayReports().status_of(PAIR, 1) == GatewaysStatus()


def test_renewal_concerns_only_what_it_says_something_new_of() -> None:
    gateways = GatewayReports()
    assert put(gateways, "a", {"x": 1, "y": 1}) is None  # a new gateway concerns everything
    later = NOW + timedelta(seconds=10)
    assert put(gateways, "a", {"x": 1, "y": 1}, at=later) == set()
    assert put(gateways, "a", {"x": 2, "z": 1}, at=later) == {"x", "y", "z"}
    assert put(gateways, "a", {"x": 2, "z": 1}, at=later, namespaces=("team",)) is None


def test_gateway_that_renews_no_more_is_noticed_once() -> None:
    gateways = GatewayReports()
    put(gateways, "a", {str(PAIR): 1})
    alive, dead = NOW + timedelta(seconds=EXPIRES_S - 1), NOW + timedelta(seconds=EXPIRES_S + 1)
    assert not gateways.expire(alive)
    assert gateways.expire(dead)
    assert not gateways.expire(dead)
    assert gateways.status_of(PAIR, 1).total == 0
    assert put(gateways, "a", {str(PAIR): 1}, at=dead) is None  # it is back


def test_gateway_whose_clock_is_wrong_is_alive_while_it_renews() -> None:
    gateways = GatewayReports()
    for renewal in range(3):
        now = NOW + timedelta(seconds=8 * renewal)
        report = GatewayReport(name="a", namespaces=(), applied={}, renewed=now - timedelta(hours=2))
        gateways.put(lease_key("a"), report_lease(report, namespace="slipstream"), now)
        assert gateways.dead_for_good(now) == []
    assert gateways.status_of(PAIR, 1).total == 1
    assert gateways.expire(now + timedelta(seconds=EXPIRES_S + 1))
    assert gateways.status_of(PAIR, 1).total == 0


def test_lease_that_is_no_report_counts_for_nothing() -> None:
    gateways = GatewayReports()
    put(gateways, "a", {str(PAIR): 1})
    assert gateways.put(lease_key("a"), {"metadata": {"name": "a"}, "spec": {}}, NOW) is None
    assert gateways.status_of(PAIR, 1).total == 0
    assert gateways.remove(lease_key("a")) == set()


def test_reports_are_given_up_after_an_hour() -> None:
    gateways = GatewayReports()
    put(gateways, "a", {})
    put(gateways, "b", {}, at=NOW + timedelta(minutes=50))
    assert gateways.dead_for_good(NOW + timedelta(minutes=59)) == []
    assert gateways.dead_for_good(NOW + timedelta(minutes=61)) == [lease_key("a")]


SERVER = WithheldServer(server="http://a", capabilities=("sampled_speculation",), reason="engine_not_lossless")


def test_withheld_servers_are_those_of_living_gateways_that_watch_the_namespace() -> None:
    gateways = GatewayReports()
    put(gateways, "a", {}, withheld=(SERVER,))
    put(gateways, "b", {}, withheld=(SERVER,), namespaces=("team",))
    put(gateways, "c", {}, withheld=(SERVER,), namespaces=("other",))
    put(gateways, "dead", {}, withheld=(SERVER,), at=NOW - timedelta(hours=1))
    gateways.expire(NOW)
    assert gateways.withheld_of(PAIR) == (SERVER, SERVER)
    assert gateways.withheld_of(ObjectKey(Kind.MODEL_PAIR, "team", "another")) == ()


def test_report_of_a_server_concerns_its_pair_when_it_changes() -> None:
    gateways = GatewayReports()
    put(gateways, "a", {})
    later = NOW + timedelta(seconds=8)
    assert put(gateways, "a", {}, at=later, withheld=(SERVER,)) == {str(PAIR)}
    assert put(gateways, "a", {}, at=later, withheld=(SERVER,)) == set()
    assert put(gateways, "a", {}, at=later) == {str(PAIR)}


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"x": 1}', '{"x": [{"server": 1}]}'])
def test_report_is_read_without_withheld_servers_that_cannot_be_read(text: str | None) -> None:
    """An older gateway's report has none. Confirmations of a kill must not depend on it."""
    report = GatewayReport(name="a", namespaces=(), applied={"x": 1}, renewed=NOW, withheld={"x": (SERVER,)})
    lease = report_lease(report, namespace="slipstream")
    assert read_report(lease) == report
    if text is None:
        del lease["metadata"]["annotations"][WITHHELD_ANNOTATION]
    else:
        lease["metadata"]["annotations"][WITHHELD_ANNOTATION] = text
    read = read_report(lease)
    assert read is not None
    assert (read.applied, read.withheld) == ({"x": 1}, {})


def _looked(name: str, unreachable: dict[str, UnreachableServers] | None, *, at: datetime = NOW) -> dict[str, Any]:
    report = GatewayReport(name=name, namespaces=(), applied={}, renewed=at, unreachable=unreachable)
    return report_lease(report, namespace="slipstream")


def test_gateways_that_have_not_looked_yet_say_nothing_of_servers() -> None:
    gateways, lost = GatewayReports(), UnreachableServers(servers=("http://a",), unreachable=1, total=1)
    gateways.put(lease_key("a"), _looked("a", None), NOW)
    assert gateways.unreachable_of(PAIR) == ()
    assert gateways.put(lease_key("a"), _looked("a", {}), NOW) is None
    assert gateways.unreachable_of(PAIR) == (None,)
    gateways.put(lease_key("b"), _looked("b", {str(PAIR): lost}), NOW)
    assert gateways.unreachable_of(PAIR) == (None, lost)
    later = NOW + timedelta(seconds=8)
    assert gateways.put(lease_key("a"), _looked("a", {str(PAIR): lost}, at=later), later) == {str(PAIR)}
    assert gateways.put(lease_key("a"), _looked("a", {str(PAIR): lost}, at=later), later) == set()


def _used(*pairs: str, renewed: datetime) -> dict[str, Any]:
    report = GatewayReport(name="a", namespaces=(), applied={}, renewed=renewed, in_use=pairs)
    return report_lease(report, namespace="slipstream")


def test_last_request_is_the_latest_report_that_a_pair_is_in() -> None:
    gateways, late = GatewayReports(), NOW + timedelta(seconds=8)
    gateways.put(lease_key("a"), _used(str(PAIR), renewed=NOW), NOW)
    assert gateways.last_request_of(PAIR) == NOW
    assert gateways.put(lease_key("a"), _used(str(PAIR), renewed=late), late) == set()
    assert gateways.put(lease_key("a"), _used(renewed=late), late + timedelta(seconds=8)) == {str(PAIR)}
    old = _used(str(PAIR), renewed=NOW - timedelta(minutes=50))
    gateways.put(lease_key("gone"), old, late)
    gateways.remove(lease_key("a"))
    assert gateways.last_request_of(PAIR) == late
    assert gateways.last_request_of(ObjectKey(Kind.MODEL_PAIR, "team", "another")) is None
    gateways.expire(late + timedelta(hours=2))
    assert gateways.last_request_of(PAIR) is None


@pytest.mark.parametrize("text", [None, "?", "{}", "[5]"])
def test_report_of_requests_that_cannot_be_read_says_nothing(text: str | None) -> None:
    """An older gateway's report has none."""
    lease = _used(str(PAIR), renewed=NOW)
    if text is None:
        del lease["metadata"]["annotations"][IN_USE_ANNOTATION]
    else:
        lease["metadata"]["annotations"][IN_USE_ANNOTATION] = text
    report = read_report(lease)
    assert report is not None
    assert report.in_use == ()


@pytest.mark.parametrize("text", ["?", "[]", '{"x": 5}'])
def test_report_of_unreachable_servers_that_cannot_be_read_says_nothing(text: str) -> None:
    lease = _looked("a", {})
    lease["metadata"]["annotations"][UNREACHABLE_ANNOTATION] = text
    report = read_report(lease)
    assert report is not None
    assert report.unreachable is None


def test_a_pair_that_requests_wait_for_is_in_demand_until_they_stop_or_their_gateway_dies() -> None:
    gateways, wanted = GatewayReports(), (str(PAIR),)
    put(gateways, "a", {})
    assert put(gateways, "a", {}, at=NOW + timedelta(seconds=1), in_use=wanted, waiting=wanted) == {str(PAIR)}
    assert gateways.demand_of(PAIR) == Demand(in_use=True, waiting=True)
    assert put(gateways, "a", {}, at=NOW + timedelta(seconds=2), in_use=wanted) == {str(PAIR)}
    assert gateways.demand_of(PAIR) == Demand(in_use=True)
    put(gateways, "a", {}, at=NOW + timedelta(seconds=3), in_use=wanted, waiting=wanted)
    gateways.expire(NOW + timedelta(seconds=4 + EXPIRES_S))
    assert gateways.demand_of(PAIR) == Demand(in_use=True), "its requests may still run"
    gateways.remove(lease_key("a"))
    assert gateways.demand_of(PAIR) == Demand()


def test_every_pair_is_in_use_for_a_gateway_without_room_for_all_names() -> None:
    """A server must not be removed because its pair's name was left out."""
    gateways = GatewayReports()
    put(gateways, "a", {}, in_use=("other/ModelPair/x", EVERY_PAIR))
    assert gateways.demand_of(PAIR) == Demand(in_use=True)
    assert gateways.last_request_of(PAIR) == NOW
    put(gateways, "b", {}, namespaces=("other",), waiting=(str(PAIR),))
    assert gateways.demand_of(PAIR).waiting is False, "that gateway does not serve the pair"
