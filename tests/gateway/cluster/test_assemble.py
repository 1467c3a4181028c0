"""A table built event by event is the table of what there is in the end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.manifest import (
    ModelPair,
    Phase,
    RoutingTable,
    SpecHashes,
    SpeculationPolicy,
    parse_resource,
)
from slipstream_gateway.sources.cluster.assemble import PAIRS, POLICIES, Assembler
from slipstream_gateway.sources.cluster.collection import trim_object

_ARM = {"protocol": "openai", "endpoints": ["http://127.0.0.1:9"], "model": "up"}
_ENGINES = ({"kind": "external", "arms": {"plain": _ARM, "speculative": _ARM}}, {"kind": "slipstream"})
_PARTS = {"target": {"source": "embedded:target"}, "draft": {"kind": "model", "source": "embedded:draft"}}


def _object(kind: str, name: str, spec: dict[str, Any], *, created: int = 0, generation: int = 1) -> dict[str, Any]:
    metadata = {"namespace": "prod", "name": name, "uid": f"{kind}{name}", "generation": generation}
    return {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": kind,
        "metadata": {**metadata, "creationTimestamp": f"2026-01-01T00:00:0{created}Z"},
        "spec": spec,
    }


def _pair(name: str, model: str, *, killed: bool = False, own: bool = True, **more: int) -> dict[str, Any]:
    spec = {"model": model, "engine": _ENGINES[own], "killSwitch": killed, **(_PARTS if own else {})}
    return _object(PAIRS, name, spec, **more)


def _policy(name: str, pair: str, *, killed: bool = False, **more: int) -> dict[str, Any]:
    return _object(POLICIES, name, {"pair": pair, "killSwitch": killed}, **more)


def _put(assembler: Assembler, item: dict[str, Any]) -> None:
    assembler.put(item["kind"], item, killed=item["spec"].get("killSwitch") is True)


def _assembler() -> Assembler:
    return Assembler(lambda service: (f"grpc://{service.replace('/', '.')}:8001",))


def _table(assembler: Assembler) -> RoutingTable:
    assembler.flush()
    return assembler.table()


_names = st.sampled_from("abc")
_age = st.integers(0, 2)
_pairs = st.builds(_pair, _names, st.sampled_from("xy"), killed=st.booleans(), own=st.booleans(), created=_age)
_policies = st.builds(_policy, _names, _names, killed=st.booleans(), created=_age)
_removals = st.tuples(st.sampled_from([PAIRS, POLICIES]), _names)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_pairs | _policies | _removals, st.booleans()), max_size=20))
def test_any_events_in_any_batches_end_in_the_table_of_what_is_there(steps: list[tuple[Any, bool]]) -> None:
    assembler, there = _assembler(), {}
    for generation, (step, flushes) in enumerate(steps, start=1):
        if isinstance(step, tuple):
            kind, name = step
            there.pop(step, None)
            assembler.remove(kind, f"prod/{name}")
        else:
            step["metadata"]["generation"] = generation
            there[step["kind"], step["metadata"]["name"]] = step
            _put(assembler, step)
        if flushes:
            assembler.flush()
    fresh = _assembler()
    for item in there.values():
        _put(fresh, item)
    assert _table(assembler) == _table(fresh)


def test_a_flush_that_changes_nothing_says_so() -> None:
    assembler = _assembler()
    _put(assembler, _pair("a", "x"))
    assert assembler.flush()
    assert not assembler.flush()
    _put(assembler, _pair("a", "x"))
    assert not assembler.flush()


def test_a_pair_that_gives_up_its_model_leaves_it_to_the_next() -> None:
    assembler = _assembler()
    _put(assembler, _pair("first", "x"))
    _put(assembler, _pair("second", "x", created=1))
    assert _table(assembler).routes["x"].pair.metadata.name == "first"
    _put(assembler, _pair("first", "y", generation=2))
    routes = _table(assembler).routes
    assert {model: route.pair.metadata.name for model, route in routes.items()} == {"x": "second", "y": "first"}


def test_a_rename_counts_once_the_operator_has_accepted_it_or_an_annotation_allows_it() -> None:
    good = {"generation": 1, "spec": msgspec.json.encode(_pair("a", "x")["spec"]).decode()}
    renamed = {**_pair("a", "y", generation=2), "status": {"lastGood": good}}
    accepted = {**renamed, "status": {"lastGood": {**good, "generation": 2}}}
    allowed = {**renamed, "metadata": {**renamed["metadata"], "annotations": {"slipstream.dev/allow-rename": "y"}}}
    for last in (accepted, allowed):
        assembler = _assembler()
        for item, served in ((_pair("a", "x"), "x"), (renamed, "x"), (last, "y")):
            _put(assembler, trim_object(item, kind=PAIRS))
            assert [*_table(assembler).routes] == [served]
    started = _assembler()
    _put(started, trim_object(renamed, kind=PAIRS))
    assert [*_table(started).routes] == ["x"]


def test_a_kill_that_comes_with_a_rename_does_not_wait_for_it() -> None:
    good = {"generation": 1, "spec": msgspec.json.encode(_pair("a", "x")["spec"]).decode()}
    assembler = _assembler()
    _put(assembler, _pair("a", "x"))
    _put(assembler, {**_pair("a", "y", killed=True, generation=2), "status": {"lastGood": good}})
    routes = _table(assembler).routes
    assert [*routes] == ["x"]
    assert routes["x"].killed


def test_a_name_is_kept_for_another_namespace_until_the_status_says_nothing_of_it() -> None:
    holder = {"model": "x", "namespace": "owners", "until": "2026-01-01T00:10:00Z"}
    waiting = {**_pair("a", "x"), "status": {"nameHolder": holder}}
    anew = _pair("anew", "x", created=1)
    anew["metadata"]["namespace"] = "owners"
    assembler = _assembler()
    for item, served in ((waiting, []), (anew, ["anew"]), ({**waiting, "status": {}}, ["a"]), (waiting, ["anew"])):
        _put(assembler, trim_object(item, kind=PAIRS))
        assert [route.pair.metadata.name for route in _table(assembler).routes.values()] == served


def test_a_broken_policy_that_names_another_pair_kills_that_one_and_still_serves_the_first() -> None:
    assembler = _assembler()
    for name in ("a", "b"):
        _put(assembler, _pair(name, name))
    _put(assembler, _policy("p", "a"))
    broken = _policy("p", "b", killed=True, generation=2)
    broken["spec"]["minConfidence"] = "high"
    _put(assembler, broken)
    routes = _table(assembler).routes
    assert routes["a"].policy is not None
    assert routes["a"].killed, "the version that counts for it is killed too"
    assert routes["b"].killed


def test_an_object_that_was_made_anew_has_no_last_good_version() -> None:
    assembler = _assembler()
    _put(assembler, _pair("a", "x"))
    anew = msgspec.json.decode(msgspec.json.encode(_pair("a", "x")))
    anew["metadata"]["uid"] = "another"
    anew["spec"]["maxDraftTokens"] = 0
    _put(assembler, anew)
    assert not _table(assembler).routes


def test_what_is_wrong_with_an_object_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assembler = _assembler()
    _put(assembler, _pair("a", "x"))
    for turn in range(2, 5):
        broken = _pair("a", "x", killed=turn % 2 == 0, generation=turn)
        broken["spec"]["maxDraftTokens"] = 0
        _put(assembler, broken)
        assembler.flush()
    assert caplog.text.count("spec.maxDraftTokens") == 1


def _versions(assembler: Assembler, *items: dict[str, Any]) -> RoutingTable:
    for item in items:
        _put(assembler, item)
    return _table(assembler)


def _broken(item: dict[str, Any]) -> dict[str, Any]:
    field = "maxDraftTokens" if item["kind"] == PAIRS else "margin"
    item["spec"][field] = -3
    return item


def _restarted(assembler: Assembler) -> Assembler:
    """What a gateway has that starts with what this one kept."""
    anew = _assembler()
    for item, killed in assembler.last_good():
        anew.put(item["kind"], item, killed=killed or item["spec"].get("killSwitch") is True)
    return anew


def test_a_kill_that_is_taken_back_by_a_broken_version_is_taken_back() -> None:
    for killed in (_pair("a", "x", killed=True, generation=2), _policy("p", "a", killed=True, generation=2)):
        assembler = _assembler()
        _versions(assembler, _pair("a", "x"), _policy("p", "a"))
        assert _table(assembler).routes["x"].killed is None
        _put(assembler, killed)
        assert _table(assembler).routes["x"].killed
        unkilled = msgspec.json.decode(msgspec.json.encode(killed))
        unkilled["metadata"]["generation"], unkilled["spec"]["killSwitch"] = 3, False
        _put(assembler, _broken(unkilled))
        for found in (assembler, _restarted(assembler)):
            route = _table(found).routes["x"]
            assert route.killed is None
            assert not route.pair.spec.kill_switch
            assert route.policy is not None
            assert not route.policy.spec.kill_switch


def test_what_a_broken_version_has_in_its_status_outlives_a_restart() -> None:
    assembler = _assembler()
    ready = {"type": "Ready", "reason": "x", "message": "gone", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pair, policy = _pair("a", "x"), _policy("p", "a")
    policy["status"] = {"classes": [{"name": "code/long", "phase": "Promoted", "share": 1.0}]}
    _versions(assembler, pair, policy)
    pair, policy = _broken(_pair("a", "x", generation=2)), _broken(_policy("p", "a", generation=2))
    pair["status"] = {"conditions": [{**ready, "status": "False"}]}
    policy["status"] = {"classes": [{"name": "code/long", "phase": "RolledBack", "share": 0.0}]}
    _versions(assembler, pair, policy)
    for found in (assembler, _restarted(assembler)):
        route = _table(found).routes["x"]
        assert route.standing is not None
        assert route.standing.of("code/long").phase is Phase.ROLLED_BACK
        assert (route.status.ready, route.status.message) == (False, "gone")


@pytest.mark.parametrize("broken", [False, True])
def test_the_kill_of_a_pair_that_lost_its_model_kills_whoever_serves_it(broken: bool) -> None:
    assembler = _assembler()
    _versions(assembler, _pair("old", "y"), _pair("owner", "x", created=1))
    _put(assembler, _pair("old", "x", generation=2))  # the older one takes the model over
    assert _table(assembler).routes["x"].pair.metadata.name == "old"
    killed = _pair("owner", "x", killed=True, created=1, generation=2)
    _put(assembler, _broken(killed) if broken else killed)
    route = _table(assembler).routes["x"]
    assert route.pair.metadata.name == "old"
    assert route.killed == "the kill switch of ModelPair/owner, which also claims the model 'x', is on"
    assert assembler.killed_pairs() == {"prod/owner"}
    _put(assembler, _pair("owner", "x", created=1, generation=3))
    assert _table(assembler).routes["x"].killed is None


def test_a_new_spec_does_not_inherit_what_another_has_earned() -> None:
    assembler = _assembler()
    entries = [
        {"name": "code/long", "phase": "Promoted", "share": 1.0},
        {"name": "code/short", "phase": "RolledBack", "share": 0.0},
    ]
    policy = _policy("p", "a")
    parsed = [parse_resource(item).item for item in (_pair("a", "x"), policy)]
    assert isinstance(parsed[0], ModelPair)
    assert isinstance(parsed[1], SpeculationPolicy)
    policy["status"] = {"specHash": SpecHashes(parsed[0], parsed[1]).whole, "classes": entries}

    def shares() -> tuple[float, Phase]:
        standing = _table(assembler).routes["x"].standing
        assert standing is not None
        return standing.of("code/long").share, standing.of("code/short").phase

    _versions(assembler, _pair("a", "x"), policy)
    assert shares() == (1.0, Phase.ROLLED_BACK)
    another = _pair("a", "x", generation=2)
    another["spec"]["draft"] = {"kind": "ngram"}
    _put(assembler, another)
    assert shares() == (0.05, Phase.ROLLED_BACK)
    newer = _pair("a", "x", generation=3)
    newer["spec"] |= {"draft": {"kind": "ngram"}, "turbo": True}  # of a version whose hash is another one, too
    _put(assembler, newer)
    assert shares() == (1.0, Phase.ROLLED_BACK)


def test_what_takes_speculation_back_is_urgent_and_nothing_else_is() -> None:
    assembler = _assembler()
    policy = _policy("p", "a")

    def urgent(item: dict[str, Any]) -> bool:
        _put(assembler, msgspec.json.decode(msgspec.json.encode(item)))
        return assembler.take_urgent()

    assert not urgent(_pair("a", "x"))
    assert not urgent(policy)
    assert urgent(_pair("a", "x", killed=True, generation=2))
    assert not urgent(_pair("a", "x", killed=True, generation=2))
    assert urgent(_pair("a", "x", generation=3))
    policy["status"] = {"classes": [{"name": "code/long", "phase": "RolledBack", "share": 0.0}]}
    assert urgent(policy)
    policy["status"]["classes"] += [{"name": "code/short", "phase": "Promoted", "share": 1.0}, 5, {"phase": []}]
    assert not urgent(policy)
    for kind, name, expected in (("SpeculationPolicy", "p", True), ("ModelPair", "a", False)):
        assembler.remove(kind, f"prod/{name}")
        assert assembler.take_urgent() is expected, "only the deletion of the policy ends a rollback"


def test_two_versions_of_an_object_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assembler = _assembler()
    good = _pair("a", "x")
    good["spec"]["future"] = 1
    _versions(assembler, good)
    caplog.clear()
    for turn in range(5):
        broken = _broken(_pair("a", "x", generation=2))
        broken["status"] = {"conditions": [], "turn": turn}
        _versions(assembler, broken)
        assembler.servers_changed("prod/slipstream-a")
        assembler.flush()
    assert len(caplog.records) == 1


def _kept(item: dict[str, Any], good: dict[str, Any]) -> dict[str, Any]:
    """`item` with what the operator keeps of a version before, as a gateway's watch trims it."""
    kept = {"generation": good["metadata"]["generation"], "spec": msgspec.json.encode(good["spec"]).decode()}
    trimmed = trim_object({**item, "status": {"lastGood": kept}}, kind=item["kind"])
    assert ("lastGood" in trimmed["status"]) == (kept["generation"] != item["metadata"]["generation"])
    return trimmed


def test_a_gateway_that_starts_serves_the_last_good_versions_that_the_status_keeps() -> None:
    pair, policy = _pair("a", "x"), _policy("p", "a")
    assembler = _assembler()
    _put(assembler, _kept(_broken(_pair("a", "x", killed=True, generation=3)), pair))
    _put(assembler, _kept(_broken(_policy("p", "a", generation=2)), policy))
    for found in (assembler, _restarted(assembler)):
        route = _table(found).routes["x"]
        assert route.pair.spec.max_draft_tokens == 8
        assert route.policy is not None
        assert route.killed, "the kill switch is that of the newest version"
    _put(assembler, _pair("a", "x", generation=4))
    assert _table(assembler).routes["x"].killed is None


def test_of_the_versions_that_were_good_the_newest_counts() -> None:
    versions = [_pair("a", "x", generation=generation) for generation in (1, 2)]
    for draft_tokens, version in enumerate(versions, start=1):
        version["spec"]["maxDraftTokens"] = draft_tokens
    for in_use, kept in (versions, reversed(versions)):
        assembler = _assembler()
        _versions(assembler, in_use, _kept(_broken(_pair("a", "x", generation=3)), kept))
        assert _table(assembler).routes["x"].pair.spec.max_draft_tokens == 2


@pytest.mark.parametrize("kept", [5, {}, {"generation": 1, "spec": "no JSON"}, {"generation": 1, "spec": "{}"}])
def test_a_last_good_version_that_cannot_be_read_is_none(kept: Any) -> None:
    assembler = _assembler()
    _put(assembler, {**_broken(_pair("a", "x", generation=2)), "status": {"lastGood": kept}})
    assert not _table(assembler).routes
