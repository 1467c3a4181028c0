"""A model name that is kept for a namespace goes to no pair of another one, however old."""

from __future__ import annotations

import random
from typing import Any

import pytest
from slipstream_core.manifest import Resolution, resolve
from slipstream_core.manifest.versions import name_holder_of, parse_version, version_key

from tests.gateway.manifest.objects import JSON, pair_spec, resource


def pair(name: str, namespace: str, *, created: int, holder: JSON | None = None, **more: JSON) -> JSON:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": f"2026-01-01T00:00:0{created}Z"}
    return resource("ModelPair", pair_spec("x"), **metadata) | {"status": {"nameHolder": holder, **more}}


def kept(*, until: str | None = None, namespace: str = "team-a") -> JSON:
    return {"model": "x", "namespace": namespace, "until": until}


def resolved(*resources: JSON) -> Resolution:
    """The same whatever the order that the resources come in."""
    parsed = [parse_version(resource) for resource in resources]
    found = resolve(parsed)
    random.Random(0).shuffle(parsed)
    assert resolve(parsed) == found
    return found


def test_name_of_a_pair_that_is_gone_is_kept_from_all_others() -> None:
    until = "2026-01-01T00:10:00Z"
    found = resolved(pair("b", "team-b", created=2, holder=kept(until=until)), pair("c", "team-c", created=1))
    assert found.pairs == {}
    for key in ("team-b/ModelPair/b", "team-c/ModelPair/c"):
        [problem] = found.problems[key]
        assert (problem.path, f"reserved for namespace team-a until {until}" in problem.message) == ("spec.model", True)


def test_pair_that_is_made_anew_gets_its_name_though_others_are_older() -> None:
    waiting, anew = pair("b", "team-b", created=1, holder=kept()), pair("a", "team-a", created=5)
    found = resolved(waiting, anew, pair("later", "team-a", created=6))
    assert list(found.pairs) == ["team-a/a"]
    [problem] = found.problems["team-b/ModelPair/b"]
    assert problem.message == "ModelPair team-a/a already serves the model 'x'"
    assert "already serves" in found.problems["team-a/ModelPair/later"][0].message


def test_once_the_status_says_nothing_more_the_oldest_gets_the_name() -> None:
    found = resolved(pair("b", "team-b", created=2), pair("c", "team-c", created=1))
    assert list(found.pairs) == ["team-c/c"]


def test_of_two_that_say_who_keeps_a_name_the_oldest_is_believed() -> None:
    young = pair("c", "team-c", created=2, holder=kept(namespace="team-d"))
    found = resolved(young, pair("b", "team-b", created=1, holder=kept()), pair("a", "team-a", created=3))
    assert list(found.pairs) == ["team-a/a"]


@pytest.mark.parametrize("holder", [None, {}, "team-a", {"model": 5, "namespace": "a"}])
def test_holder_that_cannot_be_read_keeps_nothing(holder: Any) -> None:
    raw = pair("b", "team-b", created=1, holder=holder)
    assert name_holder_of(raw) is None
    assert list(resolved(raw).pairs) == ["team-b/b"]


def test_news_of_a_status_make_another_version_only_where_they_count() -> None:
    before = pair("b", "team-b", created=1)
    assert version_key(before) == version_key(pair("b", "team-b", created=1, replicas={"ready": 1}))
    assert version_key(before) != version_key(pair("b", "team-b", created=1, holder=kept()))
