"""A rename of a pair that clients ask for waits until they have stopped, or an annotation accepts it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from slipstream_core.manifest.status import Condition
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.types import Observed, PairPlan

from tests.operator.pair_objects import EXTERNAL_SPEC, pair_object

NOW = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
KEY = ObjectKey(Kind.MODEL_PAIR, "prod", "acme")
ALLOW = "slipstream.dev/allow-rename"


class World:
    """One pair, reconciled as the operator does it: judged with the status that the last plan wrote."""

    def __init__(self) -> None:
        self.now, self.status, self.last_request = NOW, {}, None
        self.declared = SpecIndex()
        self.raw = pair_object(EXTERNAL_SPEC)

    def asked(self) -> None:
        self.last_request = self.now

    def rename(self, model: str, *, allowed: str | None = None) -> None:
        generation = self.raw["metadata"]["generation"] + (model != self.raw["spec"]["model"])
        self.raw = pair_object(EXTERNAL_SPEC, model=model, generation=generation)
        if allowed is not None:
            self.raw["metadata"]["annotations"] = {ALLOW: allowed}

    def look(self) -> PairPlan:
        raw = {**self.raw, "status": self.status}
        self.declared.put(raw)
        self.declared.resolve()
        problems = self.declared.resolution.problems.get(str(KEY), ())
        good = self.declared.last_good(KEY)
        made = reconcile_pair(
            Observed(raw=raw, last_good=good, problems=problems, last_request=self.last_request), self.now
        )
        self.status = msgspec.to_builtins(made.status)
        self.declared.put({**self.raw, "status": self.status})
        self.declared.resolve()
        return made

    @property
    def served(self) -> str:
        [pair] = self.declared.resolution.pairs.values()
        return pair.spec.model


def condition(made: PairPlan, name: str) -> Condition:
    [found] = [condition for condition in made.status.conditions if condition.type == name]
    return found


def noted(made: PairPlan) -> list[str]:
    return [note.reason for note in made.notes]


def test_pair_that_nobody_asks_for_is_renamed_at_once() -> None:
    world = World()
    first = world.look()
    assert (first.status.in_use, first.status.last_request_time, first.next_look_s) == (False, None, None)
    world.rename("new")
    made = world.look()
    assert world.served == "new"
    assert condition(made, "Accepted").status == "True"
    assert noted(made) == ["ModelRenamed"]
    assert made.next_look_s == 0.0
    assert made.children is None
    again = world.look()
    assert (again.next_look_s, noted(again), condition(again, "Ready").status) == (None, [], "True")
    assert again.children == ()


def test_rename_of_a_pair_in_use_waits_says_why_and_is_accepted_by_itself() -> None:
    world = World()
    world.asked()
    first = world.look()
    assert (first.status.in_use, first.status.last_request_time) == (True, "2026-11-20T12:00:00Z")
    world.rename("new")
    world.now += timedelta(minutes=4)
    made = world.look()
    accepted = condition(made, "Accepted")
    assert (accepted.status, accepted.reason) == ("False", "ModelNameInUse")
    for part in ("'demo', last at 2026-11-20T12:00:00Z", "'new' after 5 minutes", f"{ALLOW}: 'new'"):
        assert part in accepted.message
    assert (made.status.state, made.status.reason) == ("NotAccepted", "ModelNameInUse")
    assert condition(made, "Ready").status == "True"
    assert (world.served, noted(made)) == ("demo", ["ModelNameInUse"])
    assert noted(world.look()) == []
    assert made.next_look_s == 60.0
    world.now += timedelta(seconds=made.next_look_s)
    made = world.look()
    assert (world.served, made.status.in_use) == ("new", False)
    assert noted(made) == ["Accepted", "ModelRenamed"]


def test_requests_of_before_a_restart_of_operator_and_gateways_count() -> None:
    world = World()
    world.asked()
    world.look()
    world.last_request, world.declared = None, SpecIndex()
    world.rename("new")
    world.now += timedelta(minutes=3)
    assert condition(world.look(), "Accepted").reason == "ModelNameInUse"
    assert world.served == "demo"


def test_annotation_with_the_new_name_accepts_at_once_and_no_other() -> None:
    world = World()
    world.asked()
    world.look()
    world.rename("new", allowed="newer")
    assert condition(world.look(), "Accepted").reason == "ModelNameInUse"
    world.rename("new", allowed="new")
    assert noted(world.look()) == ["Accepted", "ModelRenamed"]
    assert world.served == "new"


def test_pair_in_use_is_looked_at_each_minute_and_when_its_use_may_be_over() -> None:
    world = World()
    world.asked()
    looks: list[Any] = []
    while (made := world.look()).next_look_s is not None:
        looks.append(made.next_look_s)
        world.now += timedelta(seconds=made.next_look_s)
    assert looks == [60.0] * 5
    assert not made.status.in_use
    assert made.status.last_request_time == "2026-11-20T12:00:00Z"


def test_clock_that_was_set_back_keeps_no_pair_in_use_for_ever() -> None:
    world = World()
    world.status = {"lastRequestTime": "2027-01-01T00:00:00Z"}
    made = world.look()
    assert made.status.last_request_time == "2026-11-20T12:00:00Z"


def test_a_wrong_name_in_the_annotation_is_answered_with_the_one_that_would_be_accepted() -> None:
    world = World()
    world.look()
    world.asked()
    world.rename("acme/one", allowed="something else")
    world.look()
    world.rename("new", allowed="knew")
    made = world.look()
    said = f"the annotation {ALLOW}: 'knew' has no effect: the name that waits is 'new'"
    assert condition(made, "Accepted").reason == "ModelNameInUse"
    assert condition(made, "Accepted").message.endswith(said)
    assert [note.message for note in made.notes if note.reason == "AnnotationIgnored"] == [said]
    assert noted(world.look()) == []


def test_the_name_of_a_rename_to_come_is_no_mistake() -> None:
    world = World()
    world.rename(world.raw["spec"]["model"], allowed="new")
    world.look()
    assert noted(world.look()) == []
