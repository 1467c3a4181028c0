"""The cache of the cluster's objects: filled by watch events, lists and the answers to the operator's own writes.

The newest version of an object wins, in whatever order versions arrive. Objects are plain dicts and never changed.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from slipstream_core.manifest.naming import PAIR_LABEL, canary_name, child_name, group_name, label_value

from slipstream_operator.cluster.resources import CHILDREN, FIELD_MANAGER, PARENTS, WORKLOADS, Kind, ObjectKey
from slipstream_operator.cluster.sharing import Sharing
from slipstream_operator.types import KubeObject

_REMEMBERED_DELETIONS = 4096
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_logger = logging.getLogger(__name__)


class Change(NamedTuple):
    """An object before and after a change; None if it did not exist before, or does not exist after."""

    key: ObjectKey
    before: KubeObject | None
    after: KubeObject | None


def key_of(item: KubeObject) -> ObjectKey:
    metadata = item["metadata"]
    return ObjectKey(Kind(item["kind"]), metadata.get("namespace", ""), metadata["name"])


def owner_uid(item: KubeObject, kind: Kind) -> str | None:
    """The uid of the object of `kind` that controls `item`."""
    for owner in item["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == kind:
            return str(owner.get("uid"))
    return None


class ObjectCache:
    """All watched objects, by kind and by the pair that they belong to."""

    def __init__(self) -> None:
        self._sharing = Sharing()
        self._objects: dict[Kind, dict[ObjectKey, KubeObject]] = {kind: {} for kind in Kind}
        self._of_label: defaultdict[tuple[str, str], set[ObjectKey]] = defaultdict(set)
        self._of_owner: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._pair_of_label: dict[tuple[str, str], ObjectKey] = {}
        self._pair_of_uid: dict[str, ObjectKey] = {}
        self._foreign_status: set[ObjectKey] = set()
        self._deleted: set[str] = set()
        self._deletions: deque[str] = deque()

    def get(self, key: ObjectKey) -> KubeObject | None:
        return self._objects[key.kind].get(key)

    def of_kind(self, kind: Kind) -> Iterable[KubeObject]:
        return self._objects[kind].values()

    def keys(self, kind: Kind) -> list[ObjectKey]:
        return list(self._objects[kind])

    def count(self, kind: Kind) -> int:
        return len(self._objects[kind])

    def is_status_foreign(self, key: ObjectKey) -> bool:
        """Whether another client has written into the status of a parent."""
        return key in self._foreign_status

    def children_of(self, pair: KubeObject) -> list[KubeObject]:
        """The children whose controller is `pair`."""
        keys = self._of_owner.get(pair["metadata"]["uid"], ())
        return [self._objects[key.kind][key] for key in sorted(keys)]

    def pods_of(self, pair: ObjectKey) -> list[KubeObject]:
        keys = self._of_label.get((pair.namespace, label_value(pair.name)), ())
        return [self._objects[key.kind][key] for key in sorted(keys) if key.kind is Kind.POD]

    def workload_of(self, pair: ObjectKey, uid: str, *, revision: str = "") -> KubeObject | None:
        """The object that runs the servers of `pair`, whose object has the uid `uid`: a Deployment, or a
        LeaderWorkerSet in the form of one. None if there is none, or another owner has it. `revision`: that of this new
        revision."""
        name = canary_name(pair.name, revision) if revision else child_name(pair.name)
        names = {Kind.DEPLOYMENT: name, Kind.LEADER_WORKER_SET: group_name(name)}
        for kind in WORKLOADS:
            found = self.get(ObjectKey(kind, pair.namespace, names[kind]))
            if found is not None and owner_uid(found, Kind.MODEL_PAIR) == uid:
                return found if kind is Kind.DEPLOYMENT else _as_deployment(found)
        return None

    def pair_of(self, item: KubeObject) -> ObjectKey | None:
        """The pair that a child or pod belongs to: by its owner, else by its label."""
        if (uid := owner_uid(item, Kind.MODEL_PAIR)) and (key := self._pair_of_uid.get(uid)):
            return key
        return self._pair_of_label.get(_label(item))

    def put(self, item: KubeObject) -> Change | None:
        """Store `item`; None if the known version is at least as new, or the object is known to be deleted."""
        key, metadata = key_of(item), item["metadata"]
        before = self._objects[key.kind].get(key)
        if metadata.get("uid") in self._deleted or (before is not None and not _is_newer(item, before)):
            return None
        after: KubeObject = self._sharing.shared(_slim(item))
        if key.kind in PARENTS:
            (self._foreign_status.add if has_foreign_status(item) else self._foreign_status.discard)(key)
        if before is not None:
            self._unindex(key, before)
        self._objects[key.kind][key] = after
        self._index(key, after)
        return Change(key, before, after)

    def remove(self, item: KubeObject) -> Change | None:
        """Remove `item`, which is deleted; None if its name is unknown, or another object has that name now."""
        key, uid = key_of(item), item["metadata"].get("uid")
        before = self._objects[key.kind].get(key)
        # A child that lost its label disappears from the watch without being deleted. It may return with the same uid.
        if uid is not None and key.kind not in CHILDREN:
            self._remember_deletion(uid)
        if before is None or before["metadata"].get("uid") != uid:
            return None
        return self._drop(key, before)

    def newest(self, kind: Kind) -> int:
        """The highest known resource version of any object of `kind`."""
        return max(map(_version, self._objects[kind].values()), default=0)

    def replace_kind(
        self, kind: Kind, items: Iterable[KubeObject], *, version: str, scope: str | None, seen: int = 0
    ) -> list[Change]:
        """Store a complete list of `kind` as of `version`, of one namespace or (None) all. Missing objects are deleted.

        `seen` is the value of `newest` before the list was requested. An older list is of a cluster that was restored
        from a backup of etcd. It replaces the known objects.
        """
        listed = {key_of(item): item for item in items}
        if 0 < _number(version) < seen:
            self._set_back(kind, listed, seen)
            version = str(seen)
        changes = [change for item in listed.values() if (change := self.put(item)) is not None]
        for key, known in list(self._objects[kind].items()):
            if key in listed or (scope is not None and key.namespace != scope):
                continue
            if _version(known) <= _number(version):  # otherwise the object is newer than the list
                changes.append(self._drop(key, known))
        return changes

    def _set_back(self, kind: Kind, listed: dict[ObjectKey, KubeObject], seen: int) -> None:
        """Drop the newer versions of the objects in `listed`, so that the older versions can be stored."""
        _logger.warning(
            "the cluster was restored to an earlier state: the list of %s is older than known objects", kind
        )
        self._deleted.clear()
        self._deletions.clear()
        for key in listed.keys() & self._objects[kind].keys():
            if _version(before := self._objects[kind][key]) <= seen:
                self._drop(key, before)

    def _drop(self, key: ObjectKey, before: KubeObject) -> Change:
        self._unindex(key, before)
        self._foreign_status.discard(key)
        del self._objects[key.kind][key]
        return Change(key, before, None)

    def _remember_deletion(self, uid: str) -> None:
        """Remember the deletion: the answer to an earlier write may arrive later, and must not restore the object."""
        if uid in self._deleted:
            return
        if len(self._deletions) >= _REMEMBERED_DELETIONS:
            self._deleted.discard(self._deletions.popleft())
        self._deletions.append(uid)
        self._deleted.add(uid)

    def _index(self, key: ObjectKey, item: KubeObject) -> None:
        if key.kind is Kind.MODEL_PAIR:
            self._pair_of_label[key.namespace, label_value(key.name)] = key
            self._pair_of_uid[item["metadata"]["uid"]] = key
        elif key.kind is Kind.POD:
            self._of_label[_label(item)].add(key)
        elif uid := owner_uid(item, Kind.MODEL_PAIR):
            self._of_owner[uid].add(key)

    def _unindex(self, key: ObjectKey, item: KubeObject) -> None:
        if key.kind is Kind.MODEL_PAIR:
            self._pair_of_label.pop((key.namespace, label_value(key.name)), None)
            self._pair_of_uid.pop(item["metadata"]["uid"], None)
        elif key.kind is Kind.POD:
            _discard(self._of_label, _label(item), key)
        elif uid := owner_uid(item, Kind.MODEL_PAIR):
            _discard(self._of_owner, uid, key)


def _discard(index: defaultdict[Any, set[ObjectKey]], place: Any, key: ObjectKey) -> None:
    index[place].discard(key)
    if not index[place]:
        del index[place]


def _as_deployment(group: KubeObject) -> KubeObject:
    """A LeaderWorkerSet with the fields of a Deployment that are read here. A group that is ready is available.
    Releases without `observedGeneration` count as having seen every change."""
    status, spec = group.get("status") or {}, group["spec"]
    seen = status.get("observedGeneration", group["metadata"].get("generation", 0) if status else 0)
    return {
        **group,
        "spec": {**spec, "template": spec["leaderWorkerTemplate"]},
        "status": {**status, "observedGeneration": seen, "availableReplicas": status.get("readyReplicas", 0)},
    }


def has_foreign_status(raw: KubeObject) -> bool:
    """Whether another client was the last to write a field of the status of `raw`, by `managedFields`."""
    entries = raw["metadata"].get("managedFields") or ()
    return any("f:status" in (entry.get("fieldsV1") or {}) for entry in entries if entry["manager"] != FIELD_MANAGER)


def _label(item: KubeObject) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), (metadata.get("labels") or {}).get(PAIR_LABEL, "")


def _is_newer(item: KubeObject, than: KubeObject) -> bool:
    return item["metadata"]["uid"] != than["metadata"]["uid"] or _version(item) > _version(than)


def _version(item: KubeObject) -> int:
    return _number(item["metadata"].get("resourceVersion", "0"))


def _number(version: str) -> int:
    """Resource versions are growing numbers: Kubernetes guarantees it for built-in and custom kinds."""
    return int(version) if version.isdigit() else 0


def _slim(item: KubeObject) -> KubeObject:
    """`item` without the fields that only the API server and kubectl need. They are often the larger part of it."""
    metadata = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
    if writers := _writers_of(item):
        metadata["managedFields"] = writers
    annotations = metadata.get("annotations")
    if annotations and _LAST_APPLIED in annotations:
        metadata["annotations"] = {name: text for name, text in annotations.items() if name != _LAST_APPLIED}
    return {**item, "metadata": metadata}


def _writers_of(item: KubeObject) -> list[dict[str, Any]]:
    """The entries of `managedFields` of a workload that own its replicas: they show whether an autoscaler owns them. Of
    a LeaderWorkerSet also the others with their times, except for its status: they show when it changed."""
    if item["kind"] not in WORKLOADS:
        return []
    entries = item["metadata"].get("managedFields") or ()
    return [entry for entry in map(_slim_entry, entries) if entry["fieldsV1"] or _shows_a_change(item, entry)]


def _slim_entry(entry: dict[str, Any]) -> dict[str, Any]:
    owns_replicas = "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    known: dict[str, Any] = {
        name: entry[name] for name in ("manager", "operation", "subresource", "time") if name in entry
    }
    return {**known, "fieldsV1": {"f:spec": {"f:replicas": {}}} if owns_replicas else {}}


def _shows_a_change(item: KubeObject, entry: dict[str, Any]) -> bool:
    return item["kind"] == Kind.LEADER_WORKER_SET and entry.get("subresource") != "status"
