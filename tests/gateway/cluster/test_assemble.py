"""A table built event by event is the table of what there is in the end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_gateway.cluster.assemble import PAIRS, POLICIES, Assembler
from slipstream_gateway.manifest import RoutingTable

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
