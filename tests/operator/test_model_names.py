"""The name of a pair that goes away is kept for its namespace for ten minutes, and over a restart of the operator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from slipstream_core.manifest.status import NameHolder
from slipstream_operator.cluster.cache import key_of
from slipstream_operator.cluster.resources import ObjectKey
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.types import Observed, PairPlan

from tests.operator.pair_objects import EXTERNAL_SPEC, JSON, pair_object

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
KEPT = NameHolder(model="demo", namespace="team-a", until="2026-11-20T12:10:00Z")


class World:
    """Pairs of several namespaces that all want one name, looked at until nothing changes."""

    def __init__(self) -> None:
        self.now, self.made = NOW, 0
        self.pairs: dict[ObjectKey, JSON] = {}
        self.plans: dict[str, PairPlan] = {}
        self.restart()

    def restart(self) -> None:
        """The operator knows what the objects say, and nothing else."""
        self.declared = SpecIndex()
        for raw in self.pairs.values():
            self.declared.put(raw)

    def make(self, namespace: str, name: str = "acme", **spec: str) -> None:
        raw = pair_object(EXTERNAL_SPEC, name=name, namespace=namespace, **spec)
        self.made += 1
        raw["metadata"] |= {"uid": f"uid-{self.made}", "creationTimestamp": f"2026-01-01T00:00:{self.made:02}Z"}
        self.pairs[key_of(raw)] = raw
        self.declared.put(raw)

    def delete(self, namespace: str) -> None:
        [key] = [key for key in self.pairs if key.namespace == namespace]
        del self.pairs[key]
        self.declared.remove(key)

    def settle(self) -> None:
        """Look at all of them for as long as one of them asks for another look at once."""
        for _ in range(10):
            looks = [self.look(key).next_look_s for key in self.pairs]
            if 0.0 not in looks:
                return
        raise AssertionError(f"still not settled: {looks}")

    def look(self, key: ObjectKey) -> PairPlan:
        self.declared.resolve()
        problems = self.declared.resolution.problems.get(str(key), ())
        observed = Observed(raw=self.pairs[key], problems=problems, name=self.declared.name_claim(key))
        plan = self.plans[key.namespace] = reconcile_pair(observed, self.now)
        self.pairs[key] = {**self.pairs[key], "status": msgspec.to_builtins(plan.status)}
        self.declared.put(self.pairs[key])
        return plan

    @property
    def served_by(self) -> list[str]:
        self.declared.resolve()
        return [key.partition("/")[0] for key in self.declared.resolution.pairs]

    def ready(self, namespace: str) -> tuple[str, str, str]:
        [found] = [each for each in self.plans[namespace].status.conditions if each.type == "Ready"]
        return found.status, found.reason, found.message


def waiting() -> World:
    """A world in which two namespaces wait for the name of a third."""
    world = World()
    for namespace in ("team-a", "team-b", "team-c"):
        world.make(namespace)
    world.settle()
    assert world.served_by == ["team-a"]
    return world


def test_pairs_that_wait_say_for_whom() -> None:
    world = waiting()
    for namespace in ("team-b", "team-c"):
        assert world.plans[namespace].status.name_holder == NameHolder(model="demo", namespace="team-a")
        assert world.plans[namespace].next_look_s is None
    assert world.plans["team-a"].status.name_holder is None


def test_name_waits_for_its_namespace_and_then_goes_to_the_oldest() -> None:
    world = waiting()
    world.delete("team-a")
    world.settle()
    assert world.served_by == []
    for namespace in ("team-b", "team-c"):
        assert world.plans[namespace].status.name_holder == KEPT
        assert world.plans[namespace].next_look_s == 600.0
        status, reason, message = world.ready(namespace)
        assert (status, reason) == ("False", "ModelNameTaken")
        assert "reserved for namespace team-a until 2026-11-20T12:10:00Z" in message
    world.now += timedelta(minutes=10)
    world.settle()
    assert world.served_by == ["team-b"]
    assert world.plans["team-b"].status.name_holder is None
    assert world.ready("team-b")[0] == "True"
    assert world.plans["team-c"].status.name_holder == NameHolder(model="demo", namespace="team-b")


def test_end_of_the_time_is_said_at_the_first_look_and_stays_the_same() -> None:
    world = waiting()
    world.delete("team-a")
    key = next(key for key in world.pairs if key.namespace == "team-b")
    messages = []
    for _ in range(2):
        world.look(key)
        messages.append(world.ready("team-b")[2])
    assert "until 2026-11-20T12:10:00Z" in messages[0]
    assert messages[0] == messages[1]


def test_pair_that_is_made_anew_in_time_has_its_name_for_good() -> None:
    world = waiting()
    world.delete("team-a")
    world.settle()
    world.now += timedelta(minutes=9)
    world.make("team-a", name="another")
    world.settle()
    assert world.served_by == ["team-a"]
    world.now += timedelta(hours=1)
    world.settle()
    assert world.served_by == ["team-a"]
    world.delete("team-a")
    world.settle()
    assert world.plans["team-b"].status.name_holder == msgspec.structs.replace(KEPT, until="2026-11-20T13:19:00Z")


def test_restart_of_the_operator_forgets_neither_the_namespace_nor_the_time() -> None:
    world = waiting()
    world.delete("team-a")
    world.restart()  # it never saw the pair that is gone
    world.settle()
    assert world.served_by == []
    world.now += timedelta(minutes=5)
    world.restart()
    world.settle()
    assert world.served_by == []
    assert world.plans["team-b"].status.name_holder == KEPT


def test_name_that_is_given_up_by_a_rename_is_kept_too() -> None:
    world = waiting()
    [key] = [key for key in world.pairs if key.namespace == "team-a"]
    renamed = pair_object(EXTERNAL_SPEC, namespace="team-a", model="new", generation=2)
    renamed["metadata"] |= {name: world.pairs[key]["metadata"][name] for name in ("uid", "creationTimestamp")}
    world.pairs[key] = {**renamed, "status": world.pairs[key]["status"]}
    world.declared.put(world.pairs[key])
    world.settle()
    assert world.served_by == ["team-a"]
    assert world.plans["team-b"].status.name_holder == KEPT


def test_pair_of_the_same_namespace_takes_over_at_once() -> None:
    world = World()
    world.make("team-a", name="first")
    world.make("team-a", name="second")
    world.settle()
    world.pairs.pop(first := next(iter(world.pairs)))
    world.declared.remove(first)
    world.settle()
    assert world.served_by == ["team-a"]
    assert world.plans["team-a"].status.name_holder is None
