"""Statuses before a real API server: what is worth a write, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeConflict
from slipstream_core.manifest.status import ClassStatus, Phase, SpeculationPolicyStatus
from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.resources import Kind, ObjectKey, resources
from slipstream_operator.status.writer import FIGURES_EVERY_S, StatusWriter

from tests.operator.operator_process import GROUP
from tests.support.kube import KubeApiServer
from tests.support.kube_client import JSON
from tests.support.manifests import manifest


def status(**changes: object) -> SpeculationPolicyStatus:
    return SpeculationPolicyStatus(**{"observed_generation": 1, "state": "Waiting", **changes})


class World:
    """One policy at an API server, its writer, and a clock that stands still."""

    def __init__(self, kube: KubeApiServer, namespace: str, api: KubeClient) -> None:
        self.now_s = 1000.0
        self.client = kube.client()
        self.path = f"{GROUP}/namespaces/{namespace}/speculationpolicies/p"
        self.client.create(self.path.rpartition("/")[0], manifest("SpeculationPolicy", "p", {"pair": "p"}))
        self.key = ObjectKey(Kind.SPECULATION_POLICY, namespace, "p")
        self.cache = ObjectCache()
        self.writer = StatusWriter(api, self.cache, resources(), on_newer=self.cache.put, clock_s=lambda: self.now_s)
        self.look()

    @property
    def raw(self) -> JSON:
        found = self.cache.get(self.key)
        assert found is not None
        return found

    def look(self) -> JSON:
        """What the API server has, which is known from now on."""
        found = self.client.get(self.path)
        self.cache.put(found)
        return found

    def version(self) -> str:
        version: str = self.client.get(self.path)["metadata"]["resourceVersion"]
        return version

    async def write(self, wanted: SpeculationPolicyStatus) -> float | None:
        return await self.writer.write(self.raw, wanted)


@pytest.fixture
async def world(kube: KubeApiServer, crds: None, namespace: str) -> AsyncIterator[World]:
    async with KubeClient(kube.kubeconfig("admin"), name="slipstream-operator") as api:
        yield World(kube, namespace, api)


async def test_same_status_is_written_once(world: World) -> None:
    await world.write(status())
    version = world.version()
    assert await world.write(status()) is None
    assert world.version() == version
    assert world.look()["status"]["state"] == "Waiting"


async def test_figures_wait_for_their_turn_and_transitions_do_not(world: World) -> None:
    await world.write(status(accept="0.70"))
    world.now_s += 10
    assert await world.write(status(accept="0.71")) == pytest.approx(FIGURES_EVERY_S - 10)
    assert world.look()["status"]["accept"] == "0.70"
    promoted = ClassStatus(name="code/long", phase=Phase.PROMOTED, share=1.0)
    assert await world.write(status(accept="0.72", classes=(promoted,))) is None
    assert world.look()["status"]["accept"] == "0.72"
    world.now_s += FIGURES_EVERY_S
    assert await world.write(status(accept="0.73", classes=(promoted,))) is None
    assert world.look()["status"]["accept"] == "0.73"


async def test_fields_that_are_said_no_more_go_away(world: World) -> None:
    await world.write(status(retry_token="again", reason="Why"))
    await world.write(status())
    found = world.look()["status"]
    assert "retryToken" not in found
    assert "reason" not in found


async def test_write_on_an_old_version_is_refused_and_the_newest_known(world: World) -> None:
    world.client.patch(world.path, {"metadata": {"labels": {"new": "1"}}})
    with pytest.raises(KubeConflict):
        await world.write(status())
    assert world.raw["metadata"]["labels"] == {"new": "1"}
    assert await world.write(status()) is None


async def test_status_that_somebody_painted_over_is_gone_on_from_as_it_was_written(world: World) -> None:
    await world.write(status())
    world.client.patch_status(world.path, {"state": "Splendid"})
    painted = world.look()
    assert painted["status"]["state"] == "Splendid"
    assert world.writer.prior(world.raw)["state"] == "Waiting"
    await world.write(status())
    assert world.look()["status"]["state"] == "Waiting"
    assert world.writer.prior(world.raw) == world.raw["status"]


async def test_status_of_another_operator_is_gone_on_from(world: World) -> None:
    await world.write(status())
    version = world.version()
    world.client.apply(
        f"{world.path}/status",
        {
            "apiVersion": "slipstream.dev/v1alpha1",
            "kind": "SpeculationPolicy",
            "metadata": {"name": "p"},
            "status": {"state": "Progressing"},
        },
        field_manager="slipstream-operator",
    )
    assert world.look()["metadata"]["resourceVersion"] != version
    assert world.writer.prior(world.raw)["state"] == "Progressing"


async def test_fields_that_the_server_drops_are_not_sent_for_ever(world: World) -> None:
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/speculationpolicies.slipstream.dev"
    crd = world.client.get(definition)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    known = schema.pop("accept")
    old = world.client.replace(definition, crd)
    try:
        for attempt in range(100):  # until the API server serves the older definition
            world.now_s += FIGURES_EVERY_S
            await world.write(status(accept=f"0.{attempt:02}"))
            if "accept" not in world.look()["status"]:
                break
        version = world.version()
        assert await world.write(status(accept=f"0.{attempt:02}")) is None
        assert world.version() == version
    finally:
        old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["accept"] = known
        newest = world.client.get(definition)
        world.client.replace(definition, {**newest, "spec": old["spec"]})


async def test_status_that_is_written_by_two_is_put_right_later_and_later_but_news_at_once(world: World) -> None:
    await world.write(status(state="Progressing"))
    pauses = []
    for _ in range(12):
        world.client.apply(
            f"{world.path}/status",
            {
                "apiVersion": "slipstream.dev/v1alpha1",
                "kind": "SpeculationPolicy",
                "metadata": {"name": "p"},
                "status": {"observedGeneration": 1, "state": "Promoted"},
            },
            field_manager="slipstream-operator",
        )
        world.look()
        pause_s = await world.write(status(state="Progressing")) or 0.0
        pauses.append(pause_s)
        if pause_s:
            assert world.look()["status"]["state"] == "Promoted"
            world.now_s += pause_s
            assert await world.write(status(state="Progressing")) is None
        assert world.look()["status"]["state"] == "Progressing"
    assert pauses[:3] == pytest.approx([0.0, 0.2, 0.4])
    assert pauses[-1] == pytest.approx(FIGURES_EVERY_S)
    world.client.patch_status(world.path, {"state": "Promoted"})
    world.look()
    assert await world.write(status(state="RolledBack")) is None
    assert world.look()["status"]["state"] == "RolledBack"


async def test_costly_figures_are_asked_for_only_when_they_would_be_written(world: World) -> None:
    asked: list[str] = []

    def seal(plain: SpeculationPolicyStatus) -> SpeculationPolicyStatus:
        asked.append(f"checkpoint {len(asked)}")
        return msgspec.structs.replace(plain, checkpoint=asked[-1])

    async def write(wanted: SpeculationPolicyStatus) -> float | None:
        return await world.writer.write(world.raw, wanted, seal=seal)

    assert await write(status(accept="0.70")) is None
    for look in range(1, 11):
        world.now_s += 2
        assert await write(status(accept="0.71")) == pytest.approx(FIGURES_EVERY_S - 2 * look)
    assert len(asked) == 1
    assert await write(status(state="Promoted")) is None
    assert world.look()["status"]["checkpoint"] == "checkpoint 1"
    world.now_s += FIGURES_EVERY_S
    assert await write(status(state="Promoted")) is None
    assert world.look()["status"]["checkpoint"] == "checkpoint 2"


@pytest.mark.parametrize(
    ("checkpoint", "deleted"), [("abc", None), ("abc", {"checkpoint": None, "classes": None}), ("", None)]
)
async def test_status_that_somebody_deleted_is_gone_on_from_as_it_was_written(
    world: World, checkpoint: str, deleted: object
) -> None:
    back = ClassStatus(name="code/long", phase=Phase.ROLLED_BACK, share=0.0)
    await world.write(status(classes=(back,), checkpoint=checkpoint))
    if deleted is None:
        world.client.patch(f"{world.path}/status", {"status": None})
    else:
        world.client.patch_status(world.path, deleted)
    assert "checkpoint" not in world.look().get("status", {})
    assert world.writer.prior(world.raw)["classes"][0]["phase"] == "RolledBack"
