"""Verdicts over what users declared: who has to be looked at when one object changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.gateway_reports import GatewayReports
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.handlers.informer import Informer
from slipstream_operator.handlers.work_queue import WorkQueue

from tests.operator.operator_process import pair_spec
from tests.support.manifests import manifest


def raw(kind: Kind, name: str, spec: dict[str, Any], *, generation: int = 1, created: int = 0) -> dict[str, Any]:
    metadata = {"namespace": "ns", "uid": f"{kind}-{name}", "creationTimestamp": f"2026-01-01T00:00:{created:02}Z"}
    return manifest(kind.value, name, spec, generation=generation, **metadata)


def pair(name: str, *, generation: int = 1, **changes: Any) -> dict[str, Any]:
    return raw(Kind.MODEL_PAIR, name, {**pair_spec(name), **changes}, generation=generation)


def policy(name: str, of: str, *, generation: int = 1, created: int = 0, **spec: Any) -> dict[str, Any]:
    return raw(Kind.SPECULATION_POLICY, name, {"pair": of, **spec}, generation=generation, created=created)


def pair_key(name: str) -> ObjectKey:
    return ObjectKey(Kind.MODEL_PAIR, "ns", name)


def policy_key(name: str) -> ObjectKey:
    return ObjectKey(Kind.SPECULATION_POLICY, "ns", name)


def declared(*objects: dict[str, Any]) -> SpecIndex:
    made = SpecIndex()
    for item in objects:
        made.put(item)
    made.resolve()
    return made


def test_nothing_is_judged_anew_for_a_new_status() -> None:
    made = declared(pair("a"), policy("a", "a"))
    made.put({**pair("a"), "status": {"state": "Ready"}})
    before = made.resolution
    assert made.resolve() == set()
    assert made.resolution is before


def test_change_of_a_pair_concerns_its_policies_and_nobody_else() -> None:
    made = declared(pair("a"), policy("a", "a"), policy("rival", "a", created=5), pair("b"), policy("b", "b"))
    made.put(pair("a", generation=2, maxDraftTokens=3))
    assert made.resolve() == {pair_key("a"), policy_key("a"), policy_key("rival")}


def test_pair_that_appears_or_goes_concerns_the_policies_that_wait_for_it() -> None:
    made = declared(policy("a", "a"))
    assert str(policy_key("a")) in made.resolution.problems
    made.put(pair("a"))
    assert made.resolve() == {pair_key("a"), policy_key("a")}
    assert made.policy_in_force("ns/a") == policy_key("a")
    made.remove(pair_key("a"))
    assert policy_key("a") in made.resolve()
    assert made.policy_in_force("ns/a") is None


def test_policy_that_goes_leaves_the_pair_to_the_next() -> None:
    made = declared(pair("a"), policy("old", "a"), policy("young", "a", created=5))
    assert made.policy_in_force("ns/a") == policy_key("old")
    made.remove(policy_key("old"))
    assert policy_key("young") in made.resolve()
    assert made.policy_in_force("ns/a") == policy_key("young")


def test_kill_on_a_policy_that_does_not_count_concerns_the_pair() -> None:
    made = declared(pair("a"), policy("old", "a"), policy("young", "a", created=5))
    made.put(policy("young", "a", created=5, generation=2, killSwitch=True))
    assert pair_key("a") in made.resolve()
    assert made.killed_policies("ns/a") == [policy_key("young")]


def test_policy_that_moves_to_another_pair_leaves_the_first() -> None:
    made = declared(pair("a"), pair("b"), policy("p", "a"))
    made.put(policy("p", "b", generation=2))
    assert {pair_key("a"), pair_key("b"), policy_key("p")} <= made.resolve() | {policy_key("p")}
    assert list(made.related("ns/a")) == [pair_key("a")]
    assert made.policy_in_force("ns/b") == policy_key("p")


def test_same_generation_with_another_spec_is_read_anew() -> None:
    """A cluster that was restored from a backup counts generations again."""
    made = declared(pair("a", generation=2, maxDraftTokens=3))
    made.put(pair("a", generation=2, maxDraftTokens=4))
    made.resolve()
    assert made.resolution.pairs["ns/a"].spec.max_draft_tokens == 4


def test_policy_stays_at_work_while_its_pair_is_refused_and_not_when_the_pair_is_gone() -> None:
    made = declared(pair("a"), policy("old", "a"), policy("young", "a", created=5))
    same = {"kind": "model", "source": "embedded:target"}
    made.remove(pair_key("a"))
    made.put(pair("a", generation=2, draft=same))
    made.resolve()
    assert made.policy_in_force("ns/a") is None
    assert made.policy_at_work("ns/a") == policy_key("old")
    made.put(pair("a", generation=3))
    made.remove(policy_key("old"))
    made.put(policy("old", "a", generation=2, margin="much"))
    made.resolve()
    assert made.policy_at_work("ns/a") == policy_key("young")
    made.remove(policy_key("young"))
    made.resolve()
    assert made.policy_at_work("ns/a") == policy_key("old")
    made.remove(pair_key("a"))
    made.resolve()
    assert made.policy_at_work("ns/a") is None


def test_last_good_pair_and_policy_count_while_the_newest_are_broken() -> None:
    made = declared(pair("a", maxDraftTokens=3), policy("old", "a", margin=0.1), policy("young", "a", created=5))
    made.put(pair("a", generation=2, maxDraftTokens=99))
    made.put(policy("old", "elsewhere", generation=2, margin="much", killSwitch=True))
    made.resolve()
    assert made.resolution.pairs["ns/a"].spec.max_draft_tokens == 3
    assert made.resolution.policies["ns/a"].spec.margin == 0.1
    assert made.policy_at_work("ns/a") == policy_key("old")
    assert "ns/a" in made.resolution.kills, "the kill switch is that of the newest version"
    assert made.resolution.problems.keys() >= {str(pair_key("a")), str(policy_key("old"))}
    made.remove(pair_key("a"))
    made.remove(policy_key("old"))
    made.resolve()
    assert not made.resolution.pairs
    assert list(made.related("ns/a")) == [policy_key("young")]


def test_operator_that_starts_finds_the_last_good_version_in_the_status() -> None:
    broken = pair("a", generation=2, maxDraftTokens=99)
    kept = {"generation": 1, "spec": msgspec.json.encode(pair("a", maxDraftTokens=3)["spec"]).decode()}
    made = declared({**broken, "status": {"lastGood": kept}})
    assert made.resolution.pairs["ns/a"].spec.max_draft_tokens == 3
    good = made.last_good(pair_key("a"))
    assert good is not None
    assert good.generation == 1


async def test_new_state_of_a_pairs_servers_concerns_its_policies() -> None:
    queue: WorkQueue[ObjectKey] = WorkQueue()
    informer = Informer(
        cache=ObjectCache(),
        specs=SpecIndex(),
        gateways=GatewayReports(),
        queue=queue,
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        on_deleted=lambda _: None,
    )

    async def queued_by(*objects: dict[str, Any]) -> set[ObjectKey]:
        for item in objects:
            item["metadata"]["resourceVersion"] = "1"
            informer.observe("ADDED", item)
        keys = {await queue.get() for _ in range(len(queue))}
        for key in keys:
            queue.done(key)
        return keys

    owner = {"kind": "ModelPair", "uid": pair("a")["metadata"]["uid"], "controller": True}

    def child(kind: Kind) -> dict[str, Any]:
        return {
            "kind": kind.value,
            "metadata": {"name": "a", "namespace": "ns", "uid": kind, "ownerReferences": [owner]},
        }

    await queued_by(pair("a"), policy("a", "a"), pair("b"), policy("b", "b"))
    assert await queued_by(child(Kind.DEPLOYMENT)) == {pair_key("a"), policy_key("a")}
    assert await queued_by(child(Kind.SERVICE)) == {pair_key("a")}
