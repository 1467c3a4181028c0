"""The API server stops, hangs, forgets, or is not there at all: what was known stays, and what is new arrives after."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.reflector import Reflector

from tests.gateway.pair_manifest import manifest_text
from tests.support.polling import soon


@pytest.fixture
def space(outages: Any, new_space: Any) -> Any:
    return new_space(outages)


async def test_what_is_known_stays_while_the_server_is_gone_and_news_arrive_when_it_is_back(
    space: Any, outages: Any, aside: Any, watch: Any
) -> None:
    space.pair("acme")
    space.policy("acme")
    async with watch(space, renew_s=0.2) as watched:
        await asyncio.to_thread(outages.stop, signal.SIGKILL)
        await soon(lambda: not watched.source.status().connected, "it is noticed")
        route = watched.routes["acme"]
        assert route.policy is not None
        assert route.killed is None
        await soon(lambda: watched.source.status().age_s > 0.2, "an age")
        await aside(outages.start)
        await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=True)
        await asyncio.to_thread(space.pair, "another")
        await soon(lambda: watched.routes["acme"].killed and "another" in watched.routes, "the news")
        await soon(lambda: watched.source.status().connected, "it is in touch again")


async def test_a_server_that_hangs_with_its_connections_open_is_noticed(space: Any, outages: Any, watch: Any) -> None:
    space.pair("acme")
    async with watch(space, renew_s=0.5) as watched:
        await soon(lambda: watched.source.status().connected, "it is in touch")
        outages.halt()
        await soon(lambda: not watched.source.status().connected, "it is noticed")
        assert "acme" in watched.routes
        outages.resume()
        await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=True)
        await soon(lambda: watched.routes["acme"].killed, "the kill after it")
        await soon(lambda: watched.source.status().connected, "it is in touch again")


async def test_a_watch_from_a_version_that_the_server_has_forgotten_starts_with_a_new_list(
    space: Any, outages: Any, aside: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A restarted server knows no version from before; here the watch comes back only when it is up again."""
    caplog.set_level("INFO")
    came_back = asyncio.Event()
    lists: list[list[str]] = []

    class Names:
        def replaced(self, items: Any) -> None:
            lists.append([item["metadata"]["name"] for item in items])

        def changed(self, changes: Any) -> None: ...

    async def pause(seconds: float) -> None:
        await came_back.wait()
        await asyncio.sleep(seconds)

    client = KubeClient(space.kubeconfig(), name="test")
    reflector = Reflector(client, (space.path("ModelPair"),), Names(), sleep=pause)
    task = asyncio.create_task(reflector.run())
    try:
        await soon(lambda: lists == [[]], "the first list")
        for index in range(3):  # the version must have moved on before it can be too old
            await asyncio.to_thread(space.pair, f"pair-{index}")
        # And beyond what the watch was told of: the server's cache begins with the newest version of anything at all.
        other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}
        await asyncio.to_thread(space.client.create, f"/api/v1/namespaces/{space.name}/configmaps", other)
        await aside(outages.restart)
        came_back.set()
        await soon(lambda: len(lists) == 2, "the second list")
        assert lists[1] == ["pair-0", "pair-1", "pair-2"]
        assert "version to resume from has expired" in caplog.text
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.aclose()


async def test_a_start_without_the_server_goes_by_the_snapshot_until_it_is_back(
    space: Any, outages: Any, aside: Any, watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"kubernetes.io/service-name": "slipstream-own", "app.kubernetes.io/part-of": "slipstream"}
    piece = {
        "metadata": {"name": "own-1", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": 8001}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
    }
    space.client.create(f"/apis/discovery.k8s.io/v1beta1/namespaces/{space.name}/endpointslices", piece)
    space.triton_pair("own")
    space.pair("killed", killSwitch=True)
    space.policy("own")
    rolled_back = {"classes": [{"name": "code/long", "phase": "RolledBack", "share": 0, "message": "slow"}]}
    space.client.patch_status(space.path("SpeculationPolicy", "own"), rolled_back)
    snapshot = tmp_path / "snapshot.json"
    async with watch(space, snapshot=snapshot):
        pass
    assert os.listdir(tmp_path) == ["snapshot.json"]

    await asyncio.to_thread(outages.stop, signal.SIGKILL)
    monkeypatch.setattr(
        "slipstream_gateway.sources.cluster.source.FIRST_LIST_S", 600.0
    )  # a gateway with a snapshot has another limit
    started_s = time.monotonic()
    async with watch(space, snapshot=snapshot) as watched:
        assert time.monotonic() - started_s < 300.0  # a first list is waited for for 600 s
        status = watched.source.status()
        assert (status.origin, status.connected) == ("snapshot", False)
        assert watched.routes["own"].plain.endpoints == ("grpc://10.0.0.1:8001",)
        assert watched.routes["own"].standing.of("code/long").share == 0
        assert watched.routes["killed"].killed
        assert watched.fleet.current.incomplete
        await aside(outages.start)
        await soon(lambda: watched.source.status().origin == "cluster", "the cluster is heard")
        assert watched.routes["killed"].killed, "nobody took it back"
        assert watched.fleet.current.incomplete == ""
        await asyncio.to_thread(space.patch, "ModelPair", "killed", killSwitch=None)
        await soon(lambda: watched.routes["killed"].killed is None, "the kill is taken back")


async def test_a_snapshot_keeps_the_last_usable_version_of_a_broken_pair_and_its_kill(
    space: Any, outages: Any, watch: Any, tmp_path: Path
) -> None:
    space.pair("acme", maxDraftTokens=6)
    snapshot = tmp_path / "snapshot.json"
    async with watch(space, snapshot=snapshot) as watched:
        await asyncio.to_thread(space.patch, "ModelPair", "acme", maxDraftTokens=99, killSwitch=True)
        await soon(lambda: watched.routes["acme"].killed, "the kill")
    await asyncio.to_thread(outages.stop, signal.SIGKILL)
    async with watch(space, snapshot=snapshot) as watched:
        route = watched.routes["acme"]
        assert route.pair.spec.max_draft_tokens == 6
        assert route.killed


async def test_a_fallback_gives_way_to_the_cluster_once_that_is_heard_and_leaves_no_snapshot(
    space: Any, outages: Any, aside: Any, watch: Any, tmp_path: Path
) -> None:
    space.pair("acme")
    fallback, snapshot = tmp_path / "fallback.yaml", tmp_path / "snapshot.json"
    fallback.write_text(manifest_text(["http://127.0.0.1:9"]))
    await asyncio.to_thread(outages.stop, signal.SIGKILL)
    async with watch(space, fallback=fallback, snapshot=snapshot) as watched:
        assert watched.source.status().origin == "fallback"
        assert watched.routes["acme"].killed
        assert watched.routes["acme"].pair.metadata.key == "pair"
    assert not await asyncio.to_thread(snapshot.exists), "a fallback is not what the cluster said"
    async with watch(space, fallback=fallback, snapshot=snapshot) as watched:
        await aside(outages.start)
        await soon(lambda: watched.source.status().origin == "cluster", "the cluster is heard")
        await soon(lambda: watched.routes["acme"].killed is None, "the fallback's plainness ends with it")
        assert watched.routes["acme"].pair.metadata.key == f"{space.name}/acme"
    assert await asyncio.to_thread(snapshot.exists)


async def test_an_empty_cluster_takes_the_place_of_a_fallback(
    space: Any, outages: Any, aside: Any, watch: Any, tmp_path: Path
) -> None:
    fallback = tmp_path / "fallback.yaml"
    fallback.write_text(manifest_text(["http://127.0.0.1:9"]))
    await asyncio.to_thread(outages.stop, signal.SIGKILL)
    async with watch(space, fallback=fallback) as watched:
        assert set(watched.routes) == {"acme"}
        await aside(outages.start)
        await soon(lambda: not watched.routes, "the cluster has no pair")
        await soon(lambda: watched.fleet.current.incomplete == "", "and that is certain")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 99, "written_s": 0}',
        '{"format": 1, "written_s": 0, "objects": [{"item": {"kind": "ModelPair"}}]}',
        json.dumps({"format": 1, "written_s": 0, "objects": [{"item": {"kind": "X", "metadata": None}}]}),
    ],
)
async def test_a_snapshot_that_cannot_be_used_is_none(text: str, space: Any, watch: Any, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(text)
    space.pair("acme")
    async with watch(space, snapshot=snapshot) as watched:
        assert set(watched.routes) == {"acme"}
    assert json.loads(snapshot.read_text())["objects"]


async def test_a_snapshot_that_cannot_be_written_changes_nothing(
    space: Any, watch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    space.pair("acme")
    async with watch(space, snapshot=Path("/proc/none/snapshot.json")) as watched:
        assert set(watched.routes) == {"acme"}
    assert "cannot be written" in caplog.text
