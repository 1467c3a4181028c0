"""Custom resources one at a time, and then against each other: the bad ones never affect the good ones."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.manifest import (
    EMBEDDED_MANIFEST,
    ModelPair,
    ParsedResource,
    Resolution,
    parse_resource,
    raw_kill_switch,
    resolve,
)

from tests.gateway.manifest.objects import JSON, pair_spec, resource

FIRST, LATER = "2026-11-20T10:00:00Z", "2026-11-20T11:00:00Z"


def pair(name: str = "acme", *, namespace: str = "team", created: str = FIRST, **spec: Any) -> JSON:
    metadata = {"namespace": namespace, "creationTimestamp": created, "generation": 3}
    return resource("ModelPair", pair_spec(name) | spec, name=name, **metadata)


def policy(name: str = "acme", *, namespace: str = "team", created: str = FIRST, **spec: Any) -> JSON:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created}
    return resource("SpeculationPolicy", {"pair": "acme", **spec}, **metadata)


def said(parsed: ParsedResource) -> list[str]:
    return [str(problem) for problem in parsed.problems]


def resolved(*resources: JSON) -> Resolution:
    """The same whatever the order that the resources come in."""
    parsed = [parse_resource(resource) for resource in resources]
    found = resolve(parsed)
    random.Random(0).shuffle(parsed)
    assert resolve(parsed) == found
    return found


def complaints(found: Resolution) -> dict[str, list[str]]:
    return {key: [str(problem) for problem in problems] for key, problems in found.problems.items()}


def test_fields_of_a_newer_version_are_dropped_and_listed() -> None:
    resource = pair(
        turbo=True,
        engine={"kind": "slipstream", "warp": 9, "device": "cpu"},
        serving={"tolerations": [{"operator": "Exists", "mood": "x"}], "affinity": {"any": {"thing": 1}}},
    ) | {"status": {"anything": 1}, "extra": {}}
    parsed = parse_resource(resource)
    assert sorted(parsed.ignored) == [
        "extra",
        "spec.engine.warp",
        "spec.serving.tolerations[0].mood",
        "spec.turbo",
    ]
    assert isinstance(parsed.item, ModelPair)
    assert parsed.item.spec.serving is not None
    assert parsed.item.spec.serving.affinity == {"any": {"thing": 1}}
    strict = parse_resource(resource, lenient=False)
    assert strict.item is None
    assert "spec.turbo: unknown field" in "".join(said(strict))


def test_a_bad_resource_has_its_problems_instead_of_an_object() -> None:
    parsed = parse_resource(pair(maxDraftTokens=0, killSwitch=True, model=5))
    assert parsed.item is None
    assert said(parsed) == [
        "spec.model: must be a string (put it in quotes), got 5",
        "spec.maxDraftTokens: must be between 1 and 32, got 0",
    ]
    assert (parsed.key, parsed.pair_key, parsed.killed, parsed.created) == (
        "team/ModelPair/acme",
        "team/acme",
        True,
        FIRST,
    )


def test_a_value_of_any_depth_is_only_a_problem() -> None:
    deep: JSON = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert said(parse_resource(pair(model=deep))) == ["spec.model: must be a string, got a value too deep to show"]


def test_rules_within_an_object_are_checked() -> None:
    parsed = parse_resource(policy(thresholds={"p95Seconds": 1, "ttftP95Seconds": 2}))
    assert parsed.item is None
    assert said(parsed) == ["spec.thresholds.ttftP95Seconds: must be at most p95Seconds (1), got 2"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"spec": {"killSwitch": True}}, True),
        ({"kind": 5, "spec": {"killSwitch": True, "model": []}}, True),
        ({"spec": {"killSwitch": None}}, False),
        ({"spec": {"killSwitch": False}}, False),
        ({"spec": {"killSwitch": "true"}}, False),
        ({"spec": [{"killSwitch": True}]}, False),
        ({}, False),
    ],
)
def test_a_kill_is_read_from_an_object_however_broken_it_is(raw: JSON, expected: bool) -> None:
    assert raw_kill_switch(raw) is expected
    assert parse_resource(raw).killed is expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_resource_makes_the_parser_raise(data: st.DataObject) -> None:
    resource = copy.deepcopy(data.draw(st.sampled_from([*yaml.safe_load_all(EMBEDDED_MANIFEST.read_text())])))
    holder = data.draw(st.sampled_from([resource, resource["metadata"], resource["spec"]]))
    key = data.draw(st.sampled_from(sorted(holder)) | st.text(max_size=5))
    holder[key] = data.draw(_JSON)
    parsed = parse_resource(resource)
    assert (parsed.item is None) is bool(parsed.problems)
    resolve([parsed])


def test_good_objects_are_accepted_by_the_pairs_key() -> None:
    found = resolved(pair(), policy("any-name"), pair("acme", namespace="other", model="m2"))
    assert (found.pairs.keys(), found.policies.keys()) == ({"team/acme", "other/acme"}, {"team/acme"})
    assert (found.problems, found.kills) == ({}, {})


def test_of_two_policies_for_a_pair_the_older_counts() -> None:
    found = resolved(pair(), policy("a-new", created=LATER), policy("old"), policy("z-same"))
    assert found.policies["team/acme"].metadata.name == "old"
    message = "spec.pair: ModelPair acme already has SpeculationPolicy old"
    assert complaints(found) == {
        "team/SpeculationPolicy/a-new": [message],
        "team/SpeculationPolicy/z-same": [message],
    }


def test_a_broken_older_policy_does_not_stand_in_the_way() -> None:
    found = resolved(pair(), policy("new", created=LATER), policy("old", margin=2))
    assert found.policies["team/acme"].metadata.name == "new"
    assert complaints(found) == {"team/SpeculationPolicy/old": ["spec.margin: must be between 0 and 1, got 2"]}


def test_of_two_pairs_for_a_model_the_older_serves_it() -> None:
    found = resolved(
        pair("one", model="m"),
        pair("two", model="m", created=LATER),
        pair("one", namespace="other", model="m", created=LATER),
        policy(pair="two"),
    )
    assert found.pairs.keys() == {"team/one"}
    assert complaints(found) == {
        "other/ModelPair/one": ["spec.model: ModelPair team/one already serves the model 'm'"],
        "team/ModelPair/two": ["spec.model: ModelPair one already serves the model 'm'"],
        "team/SpeculationPolicy/acme": ["spec.pair: ModelPair two is refused, see its status"],
    }


def test_a_policy_without_its_pair_says_which_there_are() -> None:
    found = resolved(
        policy(), *(pair(f"p{n}") for n in range(9)), pair("far", namespace="other"), pair("broken", maxDraftTokens=0)
    )
    assert complaints(found)["team/SpeculationPolicy/acme"] == [
        "spec.pair: no ModelPair is named 'acme' (known: p0, p1, p2, p3, p4, p5, p6, p7, ...)"
    ]
    assert len(found.pairs) == 10
    assert found.policies == {}


def test_a_policy_of_a_broken_pair_waits_for_it() -> None:
    found = resolved(pair(maxDraftTokens=99), policy())
    assert (found.pairs, found.policies) == ({}, {})
    assert complaints(found)["team/SpeculationPolicy/acme"] == ["spec.pair: ModelPair acme is refused, see its status"]


def test_a_policy_that_does_not_fit_its_pair_is_refused_alone() -> None:
    found = resolved(pair(maxDraftTokens=4), policy(draftTokens=5))
    assert found.pairs.keys() == {"team/acme"}
    assert complaints(found) == {
        "team/SpeculationPolicy/acme": ["spec.draftTokens: must be at most maxDraftTokens of ModelPair/acme (4), got 5"]
    }


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([pair(killSwitch=True), policy(killSwitch=True)], "the kill switch of ModelPair/acme is on"),
        ([pair(), policy(killSwitch=True)], "the kill switch of SpeculationPolicy/acme is on"),
        ([pair(killSwitch=True, maxDraftTokens=0)], "the kill switch of ModelPair/acme is on"),
        ([pair(), policy(killSwitch=True, margin="x")], "the kill switch of SpeculationPolicy/acme is on"),
        (
            [pair(), policy(), policy("late", created=LATER, killSwitch=True)],
            "the kill switch of SpeculationPolicy/late is on",
        ),
    ],
    ids=["both", "policy", "broken pair", "broken policy", "losing policy"],
)
def test_a_kill_counts_whoever_says_it(resources: list[JSON], expected: str) -> None:
    assert resolved(*resources).kills == {"team/acme": expected}


def test_a_kill_stays_within_its_namespace() -> None:
    found = resolved(pair(), pair(namespace="other", model="m2"), policy(namespace="other", killSwitch=True))
    assert found.kills.keys() == {"other/acme"}


def test_the_kill_of_a_pair_that_claims_a_model_kills_whoever_serves_it() -> None:
    serving, claiming = pair("one", model="m"), pair("two", model="m", created=LATER, killSwitch=True)
    found = resolved(serving, claiming, pair("far", model="m3"))
    assert found.pairs.keys() == {"team/one", "team/far"}
    assert found.kills == {
        "team/one": "the kill switch of ModelPair/two, which also claims the model 'm', is on",
        "team/two": "the kill switch of ModelPair/two is on",
    }
    elsewhere = resolved(serving, pair("two", namespace="other", model="m", killSwitch=True, maxDraftTokens=0))
    assert elsewhere.kills["team/one"] == (
        "the kill switch of ModelPair/other/two, which also claims the model 'm', is on"
    )
