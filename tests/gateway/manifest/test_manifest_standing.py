"""What the operator's status lets speculate, and what a rollback is tied to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import (
    ClassStanding,
    ModelPair,
    PairStatus,
    Phase,
    SpecHashes,
    SpeculationPolicy,
    Standing,
    compile_route,
    compile_table,
    pair_status_of,
    parse_resource,
    standing_of,
    table_of,
)

from tests.gateway.manifest.objects import JSON, pair_spec, resource


def pair(**spec: Any) -> ModelPair:
    parsed = parse_resource(resource("ModelPair", pair_spec("acme-chat") | spec, name="acme", namespace="team"))
    assert isinstance(parsed.item, ModelPair), parsed.problems
    return parsed.item


def policy(**spec: Any) -> SpeculationPolicy:
    raw = resource("SpeculationPolicy", {"pair": "acme", **spec}, name="acme", namespace="team")
    parsed = parse_resource(raw)
    assert isinstance(parsed.item, SpeculationPolicy), parsed.problems
    return parsed.item


def entry(name: str = "code/long", phase: str = "Promoted", share: float = 1, **more: Any) -> JSON:
    return {"name": name, "phase": phase, "share": share, **more}


@pytest.mark.parametrize("status", [None, {}, {"observedGeneration": 2, "state": "New"}])
def test_a_class_that_nobody_judged_is_at_the_first_step(status: JSON | None) -> None:
    standing = standing_of(policy(rollout={"steps": [{"share": 0.1}, {"share": 1}]}), status).of("code/long")
    assert (standing.share, standing.phase) == (0.1, Phase.PROGRESSING)


def test_a_class_stands_where_the_status_says() -> None:
    status = {
        "classes": [
            entry("code/long", "Progressing", 0.25, step=1),
            entry("code/short", "RolledBack", 0, message="acceptance 0.41 < 0.55"),
            entry("open_chat/long", "Promoted", 1, fromTheFuture={"a": 1}),
            entry("open_chat/short", "Promoted", 1, holdBackShare=0.1, holdBackSince="2026-01-01T00:00:00Z"),
        ],
        "newField": [1],
    }
    standing = standing_of(policy(), status)
    assert standing.of("code/long") == ClassStanding(share=0.25, phase=Phase.PROGRESSING)
    assert standing.of("code/short") == ClassStanding(
        share=0, phase=Phase.ROLLED_BACK, message="acceptance 0.41 < 0.55"
    )
    assert standing.of("open_chat/long").share == 1
    assert standing.of("open_chat/long").hold_back_share is None
    assert standing.of("open_chat/short").hold_back_share == 0.1
    assert standing.initial.hold_back_share is None
    assert standing.of("extraction/long") == standing.initial


@pytest.mark.parametrize("phase", ["RolledBack", "Stale", "Disabled"])
def test_a_share_by_hand_does_not_bring_a_class_back(phase: str) -> None:
    assert standing_of(policy(), {"classes": [entry(phase=phase, share=1)]}).of("code/long").share == 0


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"classes": "all"}, "$.classes"),
        ({"classes": [entry(phase="Great")]}, "'Great' - at `$.classes[0].phase`"),
        ({"classes": [entry(share=2)]}, "$.classes[0].share"),
        ({"classes": [entry(share="1")]}, "$.classes[0].share"),
        ({"classes": [{"name": "code/long"}]}, "`phase`"),
        ({"classes": [entry(), entry(share=0.1)]}, "'code/long' is listed twice"),
        ({"observedGeneration": -1}, "$.observedGeneration"),
        (["x"], "got `array`"),
    ],
)
def test_a_status_that_cannot_be_read_lets_nothing_speculate(status: Any, why: str) -> None:
    for name in ("code/long", "extraction/short"):
        standing = standing_of(policy(), status).of(name)
        assert (standing.share, standing.phase) == (0, Phase.STALE)
        assert standing.message.startswith("the status of SpeculationPolicy/acme cannot be read: ")
        assert why in standing.message


def condition(kind: str, status: str, message: str = "") -> JSON:
    time = "2026-11-20T10:00:00Z"
    return {"type": kind, "status": status, "reason": "Because", "message": message, "lastTransitionTime": time}


@pytest.mark.parametrize("status", [None, {}, {"conditions": [condition("Ready", "Unknown")]}])
def test_a_pair_may_speculate_until_something_says_no(status: JSON | None) -> None:
    assert pair_status_of(status) == PairStatus()


@pytest.mark.parametrize("kind", ["Ready", "ResolvedRefs", "TokenizerCompatible"])
def test_a_condition_that_does_not_hold_says_why(kind: str) -> None:
    status = {"conditions": [condition("Progressing", "False", "x"), condition(kind, "False", "token 5 differs")]}
    assert pair_status_of(status) == PairStatus(ready=False, message="token 5 differs")


def test_the_cause_is_named_before_what_follows_from_it() -> None:
    conditions = [condition("Ready", "False", "not ready"), condition("TokenizerCompatible", "False", "token 5")]
    assert pair_status_of({"conditions": conditions}).message == "token 5"
    assert pair_status_of({"conditions": [condition("Ready", "False")]}).message == "Because"


@pytest.mark.parametrize("status", [{"conditions": [{"type": "Ready"}]}, {"replicas": 5}])
def test_a_pairs_status_that_cannot_be_read_lets_nothing_speculate(status: JSON) -> None:
    found = pair_status_of(status)
    assert not found.ready
    assert found.message.startswith("its status cannot be read: ")


def hashes(pair_object: ModelPair | None, policy_object: SpeculationPolicy) -> tuple[str, str]:
    """The hash of everything, and that of a class."""
    found = SpecHashes(pair_object, policy_object)
    return found.whole, found.of("code/long")


# fmt: off
SAME: list[Callable[[], tuple[str, str]]] = [
    lambda: hashes(pair(killSwitch=True), policy()),
    lambda: hashes(pair(requestBounds={"maxChoices": 3}), policy()),
    lambda: hashes(pair(killSwitch=False), policy(killSwitch=True)),
    lambda: hashes(pair(), policy(enabled=False)),
    lambda: hashes(pair(), policy(retryToken="again")),
    lambda: hashes(pair(serving={"replicas": 9, "gpus": 0, "nodeSelector": {"a": "b"}}), policy()),
    lambda: hashes(pair(maxDraftTokens=8), policy(margin=0.02, analysis={"minSamples": 200}, thresholds={})),
]
OTHER: list[Callable[[], tuple[str, str]]] = [
    lambda: hashes(None, policy()),
    lambda: hashes(pair(maxDraftTokens=7), policy()),
    lambda: hashes(pair(draft={"kind": "model", "source": "./draft"}), policy()),
    lambda: hashes(pair(target={"source": "./target", "revision": "2"}), policy()),
    lambda: hashes(pair(serving={"image": "triton:2"}), policy()),
    lambda: hashes(pair(), policy(thresholds={"acceptanceFloor": 0.5})),
    lambda: hashes(pair(), policy(classes=[{"name": "code", "draftTokens": 3}])),
    lambda: hashes(pair(), policy(classes=[{"name": "code/long", "mode": "plain"}])),
    lambda: hashes(pair(), policy(maxCostIncrease=None)),
    lambda: hashes(pair(), policy(rollout={"steps": [{"share": 1}]})),
]
OF_OTHERS: list[Callable[[], str]] = [
    lambda: SpecHashes(pair(), policy(classes=[{"name": "code/short", "mode": "plain"}])).of("code/long"),
    lambda: SpecHashes(pair(), policy(classes=[{"name": "open_chat", "draftTokens": 2}])).of("code/long"),
    lambda: SpecHashes(pair(), policy(classes=[{"name": "code"}])).of("code/long"),
    lambda: SpecHashes(pair(), policy(analysis={"windowSeconds": 60})).of("code/long"),
    lambda: SpecHashes(pair(), policy(rollback={"maxRetries": 9})).of("code/long"),
    lambda: SpecHashes(pair(), policy(parityTexts=True)).of("code/long"),
]
# fmt: on


def test_a_rollback_outlives_what_does_not_change_the_answers() -> None:
    assert {hashed() for hashed in SAME} == {hashes(pair(), policy())}


def test_any_other_spec_is_another_one() -> None:
    for found in zip(*(hashed() for hashed in OTHER), strict=True):
        assert len(set(found)) == len(OTHER)
        assert not {*found} & {*hashes(pair(), policy())}
        assert all(len(hashed) == 16 and int(hashed, 16) >= 0 for hashed in found)


def test_a_class_outlives_what_concerns_others_or_how_it_is_judged() -> None:
    assert {hashed() for hashed in OF_OTHERS} == {SpecHashes(pair(), policy()).of("code/long")}


def test_a_classs_limit_is_its_rules_else_the_policys() -> None:
    own = [{"name": "code", "thresholds": {"acceptanceFloor": 0.5}}]
    ruled = SpecHashes(pair(), policy(classes=own)).of("code/long")
    assert ruled == SpecHashes(pair(), policy(thresholds={"acceptanceFloor": 0.5})).of("code/long")
    assert ruled == SpecHashes(pair(), policy(classes=own, thresholds={"acceptanceFloor": 0.4})).of("code/long")


def test_a_rollbacks_hash_survives_new_versions_of_the_operator() -> None:
    """A change here clears every rollback of every cluster at an upgrade."""
    found = SpecHashes(pair(), policy(margin=0.05))
    assert found.whole == "13fa9810f2d1f174"
    assert found.of("code/long") == "ea256c152ec03934"


def test_a_table_of_a_cluster_has_what_was_found_out() -> None:
    first, other = pair(), msgspec.structs.replace(pair(model="m2"))
    other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, name="other"))
    standing = standing_of(policy(), None)
    table = compile_table(
        [first, other, policy()],
        status={"team/other": PairStatus(ready=False, message="loading")},
        standings={"team/acme": standing},
        kills={"team/acme": "the kill switch of SpeculationPolicy/late is on"},
        endpoints={"team/acme": ("grpc://10.0.0.1:8001", "grpc://10.0.0.2:8001")},
    )
    acme, second = table.routes["acme-chat"], table.routes["m2"]
    assert acme.policy is not None
    assert (acme.standing, acme.killed) == (standing, "the kill switch of SpeculationPolicy/late is on")
    assert acme.plain.endpoints == ("grpc://10.0.0.1:8001", "grpc://10.0.0.2:8001")
    assert (acme.plain.pool, acme.plain.model) == ("team/acme", "acme")
    assert (second.policy, second.standing, second.killed) == (None, None, None)
    assert second.status.message == "loading"
    assert second.plain.endpoints == ()  # in a cluster, nothing of it runs on this machine


def test_addresses_of_a_spec_go_before_those_found() -> None:
    named = pair(engine={"kind": "slipstream", "endpoints": ["grpc://own:8001"]})
    assert compile_route(named, None, endpoints=("grpc://found:8001",)).plain.endpoints == ("grpc://own:8001",)


def test_a_route_by_itself_is_the_route_of_a_table() -> None:
    items = (pair(), policy())
    table = compile_table(items, folder=Path("/m"))
    assert compile_route(*items) == table.routes["acme-chat"]
    assert table_of([compile_route(*items)], folder=Path("/m")) == table


def test_what_was_found_out_does_not_change_what_was_written() -> None:
    items = (pair(), policy())
    route = compile_route(
        *items, killed="x", standing=Standing(classes={}, initial=standing_of(policy(), None).initial)
    )
    assert route.generation == compile_route(*items).generation


def test_a_file_withholds_nothing() -> None:
    route = compile_table((pair(), policy())).routes["acme-chat"]
    assert (route.standing, route.killed, route.plain.endpoints) == (None, None, ("grpc://127.0.0.1:8001",))


def test_what_was_said_of_another_spec_holds_only_for_what_was_taken_back() -> None:
    entries = [
        entry("code/long", "Promoted", 1),
        entry("code/short", "RolledBack", 0, message="slow"),
        entry("extraction/long", "Stale", 0),
        entry("extraction/short", "Disabled", 0),
    ]
    status = {"specHash": SpecHashes(pair(), policy()).whole, "classes": entries}
    same = standing_of(policy(), status, hashes=SpecHashes(pair(), policy()))
    assert same.of("code/long").share == 1
    new = policy(rollout={"steps": [{"share": 0.1}, {"share": 1}]})
    other = standing_of(new, status, hashes=SpecHashes(pair(), new))
    assert other.of("code/short") == ClassStanding(share=0, phase=Phase.ROLLED_BACK, message="slow")
    for name in ("code/long", "extraction/long", "extraction/short", "open_chat/long"):
        assert (other.of(name).share, other.of(name).phase) == (0.1, Phase.PROGRESSING)
        assert "not judged this spec" in other.of(name).message


@pytest.mark.parametrize("status", [{"classes": [entry()]}, {"specHash": "", "classes": [entry()]}])
def test_a_status_that_names_no_spec_is_taken_at_its_word(status: JSON) -> None:
    assert standing_of(policy(), status, hashes=SpecHashes(pair(), policy())).of("code/long").share == 1


def test_a_status_that_lost_the_hash_of_its_spec_has_those_of_its_classes() -> None:
    hashed = SpecHashes(pair(), policy())
    status = {"classes": [{**entry(name="code/long"), "specHash": hashed.of("code/long")}]}
    assert standing_of(policy(), status, hashes=hashed).of("code/long").share == 1
    new = policy(margin=0.05)
    found = standing_of(new, status, hashes=SpecHashes(pair(), new)).of("code/long")
    assert "not judged this spec" in found.message


def test_a_class_that_a_new_spec_does_not_concern_keeps_its_standing() -> None:
    hashed = SpecHashes(pair(), policy())
    entries = [{**entry(name, "Promoted", 1), "specHash": hashed.of(name)} for name in ("code/long", "code/short")]
    status = {"specHash": hashed.whole, "classes": entries}
    new = policy(classes=[{"name": "code/short", "draftTokens": 2}], analysis={"windowSeconds": 60})
    found = standing_of(new, status, hashes=SpecHashes(pair(), new))
    assert (found.of("code/long").phase, found.of("code/long").share) == (Phase.PROMOTED, 1)
    assert "not judged this spec" in found.of("code/short").message
    assert "not judged this spec" in found.of("open_chat/long").message


@pytest.mark.parametrize("decisions", [7, "all", [7], [{"rule": "Promote"}], [{"time": "t", "rule": "x" * 65}]])
def test_decisions_that_cannot_be_read_take_nothing_back(decisions: object) -> None:
    standing = standing_of(policy(), {"classes": [entry(phase="Promoted", share=1)], "decisions": decisions})
    assert (standing.of("code/long").share, standing.decisions) == (1, ())
