"""EndpointSlices decide where a pair's requests go."""

from __future__ import annotations

import asyncio
from typing import Any

from slipstream_gateway.sources.cluster.endpoints import Endpoints, addresses, trim_slice

from tests.support.polling import soon

PORTS = [{"name": "http", "port": 8000}, {"name": "grpc", "port": 8001}]


def _slice(*hosts: str, family: str = "IPv4", **conditions: bool) -> dict[str, Any]:
    endpoints = [{"addresses": [host], "conditions": conditions} for host in hosts]
    return {"addressType": family, "ports": PORTS, "endpoints": endpoints}


def test_ready_servers_are_found_in_all_slices_once_and_in_a_stable_order() -> None:
    slices = [_slice("10.0.0.2", "10.0.0.1"), _slice("10.0.0.2", "10.0.0.3", ready=True)]
    found = addresses(slices)
    assert found == ("grpc://10.0.0.1:8001", "grpc://10.0.0.2:8001", "grpc://10.0.0.3:8001")
    assert addresses(reversed(slices)) == found


def test_servers_that_are_not_ready_or_leaving_are_left_out() -> None:
    slices = [_slice("10.0.0.1", ready=False), _slice("10.0.0.2", ready=True, terminating=True), _slice("10.0.0.3")]
    assert addresses(slices) == ("grpc://10.0.0.3:8001",)


def test_a_service_of_both_families_has_each_server_once() -> None:
    six = _slice("fd00::1", family="IPv6")
    assert addresses([six]) == ("grpc://[fd00::1]:8001",)
    assert addresses([six, _slice("10.0.0.1")]) == ("grpc://10.0.0.1:8001",)
    assert addresses([six, _slice("10.0.0.1", ready=False)]) == ("grpc://[fd00::1]:8001",)


def test_what_says_nothing_of_use_has_no_servers() -> None:
    assert addresses([]) == ()
    assert addresses([{"addressType": "FQDN", "ports": PORTS, "endpoints": [{"addresses": ["a.b"]}]}]) == ()
    assert addresses([{"addressType": "IPv4", "ports": None, "endpoints": None}]) == ()
    assert addresses([{**_slice("10.0.0.1"), "ports": [{"name": "metrics", "port": 8002}]}]) == ()


def test_servers_without_grpc_are_reached_over_http() -> None:
    http = [{"name": "http", "port": 8000}]
    assert addresses([{**_slice("10.0.0.1"), "ports": http}]) == ("http://10.0.0.1:8000",)
    assert addresses([{**_slice("fd00::1", family="IPv6"), "ports": http}]) == ("http://[fd00::1]:8000",)


def _owned(service: str, name: str, *hosts: str, **conditions: bool) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service}
    metadata = {"namespace": "prod", "name": name, "labels": labels}
    return trim_slice({**_slice(*hosts, **conditions), "metadata": metadata})


def test_the_last_server_serves_while_its_pod_ends() -> None:
    endpoints = Endpoints()
    endpoints.replace(None, [_owned("a", "a-1", "10.0.0.1")])
    leaving = _owned("a", "a-1", "10.0.0.1", ready=False, serving=True, terminating=True)
    endpoints.put(leaving)
    assert endpoints.of("prod/a") == ("grpc://10.0.0.1:8001",)
    endpoints.put(_owned("a", "a-2", "10.0.0.2"))
    assert endpoints.of("prod/a") == ("grpc://10.0.0.2:8001",)
    endpoints.remove(_owned("a", "a-2", "10.0.0.2"))
    endpoints.put({**leaving, "endpoints": []})
    assert endpoints.of("prod/a") == ()


def test_the_last_servers_stay_while_their_nodes_are_silent() -> None:
    """A server that was never ready is not among them, nor one whose pod ends."""
    endpoints = Endpoints()
    silent = {"ready": False, "serving": False, "terminating": False}
    endpoints.replace(None, [_owned("a", "a-1", "10.0.0.1", "10.0.0.2"), _owned("a", "a-2", "10.0.0.3", **silent)])
    endpoints.put(_owned("a", "a-1", "10.0.0.1", "10.0.0.2", **silent))
    assert endpoints.of("prod/a") == ("grpc://10.0.0.1:8001", "grpc://10.0.0.2:8001")
    endpoints.put(_owned("a", "a-1", "10.0.0.1", **silent))
    assert endpoints.of("prod/a") == ("grpc://10.0.0.1:8001",)
    endpoints.put(_owned("a", "a-2", "10.0.0.3"))
    assert endpoints.of("prod/a") == ("grpc://10.0.0.3:8001",)
    endpoints.put(_owned("a", "a-2", "10.0.0.3", **{**silent, "terminating": True}))
    assert endpoints.of("prod/a") == ()


def test_until_a_namespace_was_listed_its_servers_are_those_of_the_last_time_or_the_services_name() -> None:
    endpoints = Endpoints({"prod/known": ("grpc://10.0.0.9:8001",)})
    assert endpoints.of("prod/known") == ("grpc://10.0.0.9:8001",)
    assert endpoints.of("prod/new") == ("grpc://new.prod.svc:8001", "http://new.prod.svc:8000")
    endpoints.replace("other", [])
    assert endpoints.of("prod/known") == ("grpc://10.0.0.9:8001",)
    endpoints.replace("prod", [_owned("new", "new-1", "10.0.0.1")])
    assert endpoints.of("prod/known") == ()
    assert endpoints.of("prod/new") == ("grpc://10.0.0.1:8001",)
    assert endpoints.known() == {"prod/new": ("grpc://10.0.0.1:8001",)}


def test_the_end_of_one_slice_leaves_the_servers_of_the_others() -> None:
    endpoints = Endpoints()
    endpoints.replace(None, [_owned("a", "a-1", "10.0.0.1"), _owned("a", "a-2", "10.0.0.2")])
    endpoints.remove(_owned("a", "a-1", "10.0.0.1"))
    assert endpoints.of("prod/a") == ("grpc://10.0.0.2:8001",)
    endpoints.remove(_owned("a", "a-2", "10.0.0.2"))
    assert endpoints.of("prod/a") == ()


async def test_slices_of_a_real_server_drive_where_a_pair_is_served(space: Any, watch: Any) -> None:
    """The server of the tests knows v1beta1 only, newer ones v1 only: both paths are tried."""
    folder = f"/apis/discovery.k8s.io/v1beta1/namespaces/{space.name}/endpointslices"
    labels = {"kubernetes.io/service-name": "slipstream-acme", "app.kubernetes.io/part-of": "slipstream"}
    body = {**_slice("10.0.0.1", ready=True), "metadata": {"name": "acme-1", "labels": labels}}
    space.triton_pair("acme")
    space.client.create(folder, {**body, "metadata": {**body["metadata"], "name": "foreign", "labels": {}}})

    async with watch(space) as watched:
        assert watched.routes["acme"].plain.endpoints == ()
        assert watched.source.status().without_servers == ("acme",)
        await asyncio.to_thread(space.client.create, folder, body)
        await soon(lambda: watched.routes["acme"].plain.endpoints == ("grpc://10.0.0.1:8001",), "it has a server")
        grown = {"endpoints": _slice("10.0.0.1", "10.0.0.2", ready=True)["endpoints"]}
        await asyncio.to_thread(space.client.patch, f"{folder}/acme-1", grown)
        await soon(lambda: len(watched.routes["acme"].plain.endpoints) == 2, "it has another server")
        route = watched.fleet.current.routes["acme"]
        assert route.speculative.replicas == route.plain.replicas, "both arms are the same servers"
        await asyncio.to_thread(space.client.delete, f"{folder}/acme-1")
        await soon(lambda: watched.routes["acme"].plain.endpoints == (), "it has none")
