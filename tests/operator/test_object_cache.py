"""What is known of the cluster: the newest version wins, and what is gone stays gone."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.resources import Kind, ObjectKey

PAIR = ObjectKey(Kind.MODEL_PAIR, "ns", "acme")
SERVICE = ObjectKey(Kind.SERVICE, "ns", "slipstream-acme")


def item(key: ObjectKey, version: int, uid: str = "u1", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": key.kind.value,
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "uid": uid,
            "resourceVersion": str(version),
            **metadata,
        },
    }


def owned(version: int = 2, uid: str = "s1", owner: str = "u1") -> dict[str, Any]:
    reference = {"kind": "ModelPair", "uid": owner, "controller": True}
    return item(SERVICE, version, uid, ownerReferences=[reference])


@given(st.permutations([1, 2, 3, 9, 10, 11]))
def test_newest_version_wins_in_any_order(versions: list[int]) -> None:
    cache = ObjectCache()
    news = [cache.put(item(PAIR, version)) for version in versions]
    assert cache.get(PAIR)["metadata"]["resourceVersion"] == "11"
    assert sum(change is not None for change in news) == sum(
        version > max(versions[:index], default=0) for index, version in enumerate(versions)
    )


def test_answer_that_comes_after_the_deletion_brings_nothing_back() -> None:
    cache = ObjectCache()
    cache.put(item(PAIR, 5))
    assert cache.remove(item(PAIR, 7)) is not None
    assert cache.put(item(PAIR, 6)) is None
    assert cache.get(PAIR) is None
    assert cache.put(item(PAIR, 8, uid="u2")) is not None


def test_late_news_of_a_deletion_leave_the_successor_alone() -> None:
    cache = ObjectCache()
    cache.put(item(PAIR, 8, uid="u2"))
    assert cache.remove(item(PAIR, 7, uid="u1")) is None
    assert cache.get(PAIR) is not None


def test_child_that_left_the_view_may_come_back_under_its_uid() -> None:
    cache = ObjectCache()
    cache.put(owned(2))
    cache.remove(owned(3))  # it lost its label
    assert cache.put(owned(4)) is not None


def test_list_removes_what_it_lacks_in_its_scope_and_keeps_what_is_newer() -> None:
    cache = ObjectCache()
    elsewhere = ObjectKey(Kind.MODEL_PAIR, "other", "acme")
    newer = ObjectKey(Kind.MODEL_PAIR, "ns", "newer")
    for key, version in ((PAIR, 3), (elsewhere, 3), (newer, 20)):
        cache.put(item(key, version, uid=str(key)))
    changes = cache.replace_kind(Kind.MODEL_PAIR, [], version="10", scope="ns")
    assert [change.key for change in changes] == [PAIR]
    assert set(cache.keys(Kind.MODEL_PAIR)) == {elsewhere, newer}
    cache.replace_kind(Kind.MODEL_PAIR, [], version="30", scope=None)
    assert cache.keys(Kind.MODEL_PAIR) == []


def test_children_are_found_by_owner_and_pods_by_label() -> None:
    cache = ObjectCache()
    pair = item(PAIR, 1)
    cache.put(pair)
    cache.put(owned())
    pod = ObjectKey(Kind.POD, "ns", "slipstream-acme-1")
    cache.put(item(pod, 1, "p1", labels={"slipstream.dev/pair": "acme"}))
    assert [child["kind"] for child in cache.children_of(pair)] == ["Service"]
    assert [found["metadata"]["name"] for found in cache.pods_of(PAIR)] == ["slipstream-acme-1"]
    assert {cache.pair_of(child) for child in (owned(), cache.get(pod))} == {PAIR}
    cache.put(owned(3, owner="another"))
    assert cache.children_of(pair) == []


def test_successor_of_a_pair_does_not_inherit_its_children() -> None:
    cache = ObjectCache()
    cache.put(item(PAIR, 1))
    cache.put(owned())
    successor = item(PAIR, 5, uid="u9")
    cache.put(successor)
    assert cache.children_of(successor) == []


def test_hand_on_a_status_is_seen_by_who_wrote_it() -> None:
    def written_by(*managers: str, version: int) -> dict[str, Any]:
        entries = [{"manager": name, "fieldsV1": {"f:status": {"f:state": {}}}} for name in managers]
        entries.append({"manager": "kubectl", "fieldsV1": {"f:spec": {}}})
        return item(PAIR, version, managedFields=entries)

    cache = ObjectCache()
    cache.put(written_by("slipstream-operator", version=1))
    assert not cache.is_status_foreign(PAIR)
    cache.put(written_by("slipstream-operator", "kubectl-edit", version=2))
    assert cache.is_status_foreign(PAIR)
    assert "managedFields" not in cache.get(PAIR)["metadata"]
    cache.put(written_by("slipstream-operator", version=3))
    assert not cache.is_status_foreign(PAIR)


def test_of_managed_fields_only_the_owners_of_replicas_are_kept() -> None:
    deployment = ObjectKey(Kind.DEPLOYMENT, "ns", "slipstream-acme")
    entries = [
        {"manager": "slipstream-operator", "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {}}}},
        {"manager": "autoscaler", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:x": {}}}},
    ]
    cache = ObjectCache()
    cache.put(item(deployment, 1, managedFields=entries))
    [kept] = cache.get(deployment)["metadata"]["managedFields"]
    assert kept == {"manager": "autoscaler", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}


def test_list_that_is_older_than_what_was_known_before_it_is_of_a_cluster_that_was_set_back() -> None:
    cache = ObjectCache()
    gone = ObjectKey(Kind.MODEL_PAIR, "ns", "made-after-the-backup")
    deleted = ObjectKey(Kind.MODEL_PAIR, "ns", "deleted-after-the-backup")
    cache.put(item(PAIR, 90))
    cache.put(item(gone, 80, uid="u2"))
    cache.put(item(deleted, 10, uid="u3"))
    cache.remove(item(deleted, 70, uid="u3"))
    seen = cache.newest(Kind.MODEL_PAIR)
    listed = [item(PAIR, 20), item(deleted, 10, uid="u3")]
    changes = cache.replace_kind(Kind.MODEL_PAIR, listed, version="30", scope=None, seen=seen)
    assert {change.key for change in changes} == {PAIR, gone, deleted}
    assert cache.get(PAIR)["metadata"]["resourceVersion"] == "20"
    assert cache.get(gone) is None
    assert cache.get(deleted) is not None
    assert cache.put(item(PAIR, 31)) is not None


def test_what_changed_while_a_list_was_on_its_way_stays() -> None:
    cache = ObjectCache()
    cache.put(item(PAIR, 90))
    seen = cache.newest(Kind.MODEL_PAIR)
    cache.put(item(PAIR, 99))  # by the watch, after the list was made
    assert cache.replace_kind(Kind.MODEL_PAIR, [item(PAIR, 90)], version="95", scope=None, seen=seen) == []
    assert cache.get(PAIR)["metadata"]["resourceVersion"] == "99"
