"""Objects never go back to an older spec, and a kill that anybody says is kept."""

from __future__ import annotations

from typing import Any

from slipstream_gateway.sources.cluster.collection import Collection, trim_object


def _pair(generation: int, *, uid: str = "u", killed: bool | None = None, name: str = "a", **status: Any) -> Any:
    spec = {"model": "m"} if killed is None else {"model": "m", "killSwitch": killed}
    metadata = {"namespace": "prod", "name": name, "uid": uid, "generation": generation}
    return {"kind": "ModelPair", "metadata": metadata, "spec": spec, "status": status}


def _generation(pairs: Collection) -> int | None:
    item = pairs.get("prod/a")
    return None if item is None else item["metadata"]["generation"]


def test_a_newer_generation_counts_and_an_older_one_does_not() -> None:
    pairs = Collection("ModelPair")
    assert pairs.put(_pair(2))
    assert not pairs.put(_pair(1))
    assert _generation(pairs) == 2
    assert pairs.put(_pair(3))
    assert _generation(pairs) == 3


def test_the_same_object_again_is_no_news_and_another_status_is() -> None:
    pairs = Collection("ModelPair")
    pairs.put(_pair(2))
    assert not pairs.put(_pair(2))
    assert pairs.put(_pair(2, conditions=[]))


def test_an_object_that_was_made_anew_counts_whatever_its_generation() -> None:
    pairs = Collection("ModelPair")
    pairs.put(_pair(9, killed=True))
    assert pairs.put(_pair(1, uid="another"))
    assert _generation(pairs) == 1
    assert not pairs.is_killed("prod/a")
    assert not pairs.remove(_pair(9)), "the end of the old one"
    assert _generation(pairs) == 1


def test_a_list_takes_away_what_is_not_in_it_within_its_namespace() -> None:
    pairs = Collection("ModelPair")
    pairs.put(_pair(1))
    pairs.put(_pair(1, name="b"))
    assert pairs.replace("elsewhere", []) == set()
    assert pairs.replace("prod", [_pair(1, name="b")]) == {"prod/a"}
    assert _generation(pairs) is None


def test_a_kill_that_an_older_version_says_counts_until_a_newer_generation() -> None:
    pairs = Collection("ModelPair")
    pairs.put(_pair(5))
    assert pairs.put(_pair(4, killed=True))
    assert pairs.is_killed("prod/a")
    assert not pairs.put(_pair(5))
    assert pairs.is_killed("prod/a"), "the same generation says nothing new"
    assert pairs.put(_pair(6))
    assert not pairs.is_killed("prod/a")


def test_a_kill_that_was_kept_from_before_counts_until_a_newer_generation() -> None:
    pairs = Collection("ModelPair")
    pairs.put(_pair(5))
    pairs.hold_kill("prod/a")
    pairs.replace("prod", [_pair(5)])
    assert pairs.is_killed("prod/a")
    pairs.replace("prod", [_pair(6)])
    assert not pairs.is_killed("prod/a")


def test_a_cluster_that_was_set_back_is_believed_with_its_second_list() -> None:
    """As after a restore of etcd from a backup: every change would be ignored until the generation is reached again."""
    pairs = Collection("ModelPair")
    pairs.put(_pair(7))
    assert pairs.replace("prod", [_pair(3)]) == set()
    assert _generation(pairs) == 7
    assert pairs.replace("prod", [_pair(3)]) == {"prod/a"}
    assert _generation(pairs) == 3


def test_what_no_gateway_reads_is_not_kept_and_what_is_obeyed_is() -> None:
    entry = {"name": "code/long", "phase": "Promoted", "share": 1.0, "message": "ok"}
    condition = {"type": "Ready", "status": "True"}
    status = {"checkpoint": "x" * 1000, "classes": [{**entry, "control": {"samples": 9}}], "conditions": [condition]}
    status["decisions"] = decisions = [{"time": "2026-03-01T10:00:00Z", "rule": "Promote"}]
    item = _pair(1, **status)
    item["metadata"] |= {"managedFields": [{}], "annotations": {"a": "b"}}
    del item["kind"]
    kept = trim_object(item, kind="ModelPair")
    assert kept["kind"] == "ModelPair"
    assert kept["status"] == {"classes": [entry], "conditions": [condition], "decisions": decisions}
    assert set(kept["metadata"]) == {"namespace", "name", "uid", "generation"}


def test_a_status_that_was_written_by_hand_is_kept_as_it_is() -> None:
    for status in ("by hand", {"classes": "many"}, {"classes": [7]}):
        assert trim_object({"metadata": {"name": "a"}, "status": status}, kind="X")["status"] == status


def test_the_share_of_the_control_reaches_gateways() -> None:
    """Everything that a gateway applies of a class's status."""
    entry = {"name": "code/long", "phase": "Progressing", "share": 0.5, "message": "m", "holdBackShare": 0.4}
    policy = {**_pair(1, classes=[{**entry, "samples": 7}]), "kind": "SpeculationPolicy"}
    assert trim_object(policy, kind="SpeculationPolicy")["status"]["classes"] == [entry]
