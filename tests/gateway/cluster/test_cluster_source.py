"""Objects of a real API server become the routing table, and stay in step with it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.manifest.reports import read_report
from slipstream_core.manifest.status import Phase
from slipstream_gateway.sources.cluster.snapshot import read_snapshot

from tests.support.polling import soon


async def test_a_pair_and_its_policy_are_served_from_the_start(space: Any, watch: Any) -> None:
    space.pair("acme")
    space.policy("acme")

    async with watch(space) as watched:
        route = watched.routes["acme"]
        assert route.pair.metadata.key == f"{space.name}/acme"
        assert route.policy is not None
        assert watched.source.status().origin == "cluster"
        assert watched.source.status().connected


async def test_a_pair_that_comes_later_is_served_and_a_deleted_one_is_not(space: Any, watch: Any) -> None:
    async with watch(space) as watched:
        assert not watched.routes
        await asyncio.to_thread(space.pair, "acme")
        await soon(lambda: "acme" in watched.routes, "the pair is served")
        await asyncio.to_thread(space.client.delete, space.path("ModelPair", "acme"))
        await soon(lambda: not watched.routes, "the pair is gone")


async def test_a_patch_of_either_kill_switch_kills_the_pair_and_taking_it_back_revives_it(
    space: Any, watch: Any
) -> None:
    space.pair("acme")
    space.policy("acme")
    async with watch(space) as watched:
        for kind in ("ModelPair", "SpeculationPolicy"):
            await asyncio.to_thread(space.patch, kind, "acme", killSwitch=True)
            await soon(lambda: watched.routes["acme"].killed, f"{kind} kills")
            assert f"{kind}/acme" in watched.routes["acme"].killed
            await asyncio.to_thread(space.patch, kind, "acme", killSwitch=None)
            await soon(lambda: watched.routes["acme"].killed is None, f"{kind} no longer kills")


async def test_a_new_version_that_is_invalid_keeps_the_last_good_one_but_its_kill_switch_counts(
    space: Any, watch: Any
) -> None:
    space.pair("acme", maxDraftTokens=6)
    async with watch(space) as watched:
        await asyncio.to_thread(space.patch, "ModelPair", "acme", maxDraftTokens=999, killSwitch=True)
        await soon(lambda: watched.routes["acme"].killed, "the broken version kills")
        assert watched.routes["acme"].pair.spec.max_draft_tokens == 6
        await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=None)
        await soon(lambda: watched.routes["acme"].killed is None, "the kill is taken back, still broken")
        await asyncio.to_thread(space.patch, "ModelPair", "acme", maxDraftTokens=7)
        await soon(lambda: watched.routes["acme"].pair.spec.max_draft_tokens == 7, "it is mended")


async def test_fields_of_a_newer_version_are_ignored(space: Any, watch: Any) -> None:
    space.pair("acme", turbo={"level": 11})
    async with watch(space) as watched:
        assert "acme" in watched.routes


async def test_of_two_policies_for_a_pair_the_older_counts_but_either_kills(space: Any, watch: Any) -> None:
    space.pair("acme")
    space.policy("first", "acme", minConfidence=0.1)
    await asyncio.sleep(1.1)  # an object's age has whole seconds
    space.policy("another", "acme", minConfidence=0.9)
    async with watch(space) as watched:
        assert watched.routes["acme"].policy.metadata.name == "first"
        await asyncio.to_thread(space.patch, "SpeculationPolicy", "another", killSwitch=True)
        await soon(lambda: watched.routes["acme"].killed, "the policy that does not count kills")


async def test_a_rolled_back_class_is_known_as_soon_as_the_status_says_so(space: Any, watch: Any) -> None:
    space.pair("acme")
    space.policy("acme")
    status = {"classes": [{"name": "code/long", "phase": "RolledBack", "share": 0.5, "message": "acceptance 0.41"}]}
    async with watch(space) as watched:
        await asyncio.to_thread(space.client.patch_status, space.path("SpeculationPolicy", "acme"), status)
        await soon(lambda: "code/long" in watched.routes["acme"].standing.classes, "the status is known")
        standing = watched.routes["acme"].standing.of("code/long")
        assert standing.phase is Phase.ROLLED_BACK
        assert standing.share == 0.0


async def test_only_the_namespaces_that_are_named_are_watched(space: Any, new_space: Any, watch: Any) -> None:
    second, third = new_space(space.server), new_space(space.server)
    for index, each in enumerate((space, second, third)):
        each.pair(f"pair-{index}")
    async with watch(space, second) as watched:
        assert set(watched.routes) == {"pair-0", "pair-1"}
        await asyncio.to_thread(second.patch, "ModelPair", "pair-1", killSwitch=True)
        await soon(lambda: watched.routes["pair-1"].killed, "a kill in the second namespace")
        assert watched.routes["pair-0"].killed is None


async def test_one_change_builds_one_route_anew(space: Any, watch: Any) -> None:
    for index in range(5):
        space.pair(f"pair-{index}")
    async with watch(space) as watched:
        before = dict(watched.fleet.current.routes)
        await asyncio.to_thread(space.patch, "ModelPair", "pair-3", killSwitch=True)
        await soon(lambda: watched.routes["pair-3"].killed, "the kill")
        after = watched.fleet.current.routes
        assert [name for name in after if after[name] is not before[name]] == ["pair-3"]


def _applied(space: Any, name: str) -> int | None:
    """The generation of a pair that the only report confirms."""
    reports = [read_report(lease) for lease in space.reports()]
    return reports[0].generation_of(f"{space.name}/ModelPair/{name}") if reports and reports[0] is not None else None


async def _confirmed(space: Any, name: str, generation: int) -> None:
    async def is_confirmed() -> bool:
        return await asyncio.to_thread(_applied, space, name) == generation

    await soon(is_confirmed, f"generation {generation} of {name} is confirmed")


async def test_what_a_report_confirms_of_a_kill_is_in_the_snapshot_already(
    space: Any, watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the snapshot lets a report go, however slow the volume; that this has an end is the next test's matter.
    monkeypatch.setattr("slipstream_gateway.sources.cluster.source.CONFIRM_WITHIN_S", 600.0)
    space.pair("acme")
    snapshot = tmp_path / "snapshot.json"
    async with watch(space, snapshot=snapshot):
        await soon(snapshot.exists, "the first snapshot")
        for killed in (True, False, True):
            item = await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=killed)
            await _confirmed(space, "acme", item["metadata"]["generation"])
            kept = read_snapshot(snapshot)  # as a crash at this moment would leave it
            assert kept is not None
            assert [known.killed for known in kept.objects] == [killed]


async def test_a_volume_that_hangs_neither_stops_a_kill_nor_holds_its_report_back(
    space: Any, watch: Any, tmp_path: Path
) -> None:
    space.pair("acme")
    snapshot = tmp_path / "snapshot.json"
    pipe = tmp_path / f".{snapshot.name}.{os.getpid()}"  # what is opened for writing waits until somebody reads
    os.mkfifo(pipe)
    try:
        async with watch(space, snapshot=snapshot) as watched:
            item = await asyncio.to_thread(space.patch, "ModelPair", "acme", killSwitch=True)
            await soon(lambda: watched.routes["acme"].killed, "the kill")
            await _confirmed(space, "acme", item["metadata"]["generation"])
            assert not snapshot.exists()
    finally:
        pipe_end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # lets the thread that waits go
        pipe.unlink(missing_ok=True)  # the thread removes it, too
        await asyncio.sleep(0.2)
        os.close(pipe_end)


async def test_a_kubeconfig_of_another_shape_is_told_of_once_and_ends_cleanly(
    space: Any, watch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kubeconfig.yaml"
    path.write_text("- 1\n")

    class Elsewhere:
        name = space.name

        def kubeconfig(self, user: str) -> Path:
            return path

    async with watch(Elsewhere()) as watched:
        await soon(lambda: "cannot be used: " in caplog.text, "the first try")
        await asyncio.sleep(1.0)  # several tries
        assert watched.source.status().origin == "none"
    assert not any(record.exc_info for record in caplog.records)
    said = [record for record in caplog.records if "cannot be used: " in record.getMessage()]
    assert 1 <= len(said) <= 5, "one of each watch and of the report"
