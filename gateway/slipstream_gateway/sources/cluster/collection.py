"""Objects of one kind in a cluster, by `namespace/name`. A collection never returns to an older spec."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from slipstream_core.kube.client import Json
from slipstream_core.manifest.resources import raw_kill_switch
from slipstream_core.manifest.versions import ALLOW_RENAME

_log = logging.getLogger(__name__)
_METADATA = ("name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp")
_STATUS = ("classes", "conditions", "decisions", "nameHolder", "specHash")
_CLASS = ("name", "phase", "share", "message", "holdBackShare")
_CANARY = ("revision", "phase", "share")


def trim_object(item: Json, *, kind: str) -> Json:
    """A custom resource without the fields that no gateway reads."""
    metadata, status = item.get("metadata") or {}, item.get("status")
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict) and ALLOW_RENAME in annotations:
        kept["annotations"] = {ALLOW_RENAME: annotations[ALLOW_RENAME]}
    trimmed = {"apiVersion": item.get("apiVersion"), "kind": kind, "metadata": kept, "spec": item.get("spec")}
    if status is not None:
        trimmed["status"] = _trim_status(status, generation=metadata.get("generation"))
    return trimmed


def _trim_status(status: Any, *, generation: Any) -> Any:
    """The fields that gateways apply or show. The operator's figures change every half minute, and its checkpoint is
    large. The last good spec counts only where it differs from that of the object's own `generation`."""
    if not isinstance(status, dict):
        return status
    kept = {key: status[key] for key in _STATUS if key in status}
    good = status.get("lastGood")
    if isinstance(good, dict) and good.get("generation") != generation:
        kept["lastGood"] = good
    if isinstance(kept.get("classes"), list):
        kept["classes"] = [_only(_CLASS, entry) for entry in kept["classes"]]
    if "canary" in status:
        kept["canary"] = _only(_CANARY, status["canary"])
    return kept


def _only(fields: Iterable[str], entry: Any) -> Any:
    return {key: entry[key] for key in fields if key in entry} if isinstance(entry, dict) else entry


def key_of(item: Mapping[str, Any]) -> str:
    """`namespace/name`."""
    metadata = item["metadata"]
    return f"{metadata.get('namespace')}/{metadata['name']}"


def generation_of(item: Mapping[str, Any]) -> int:
    return int(item["metadata"].get("generation") or 0)


class Collection:
    """The newest version of every object of `kind`, by `namespace/name`.

    An object's generation only grows. A lower one comes from a place that lags behind, and is ignored, but for its
    kill switch: a kill seen from any source wins. Where a second list still has it, the cluster itself was set back
    (etcd restored from a backup), and is believed.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, Json] = {}
        self._behind: dict[str, int] = {}
        self._killed_behind: set[str] = set()

    def get(self, key: str) -> Json | None:
        return self._items.get(key)

    def values(self) -> Iterable[Json]:
        return self._items.values()

    def is_killed(self, key: str) -> bool:
        """Whether any version of the object has its kill switch on."""
        item = self._items.get(key)
        return item is not None and (key in self._killed_behind or raw_kill_switch(item))

    def put(self, item: Json) -> bool:
        """Store a version. Returns whether anything changed."""
        key = key_of(item)
        known = self._items.get(key)
        if known is None or known["metadata"].get("uid") != item["metadata"].get("uid"):
            return self._accept(key, item)
        if generation_of(item) < generation_of(known):
            return self._doubt(key, item)
        if generation_of(item) > generation_of(known):
            return self._accept(key, item)
        self._items[key] = item
        return known != item

    def hold_kill(self, key: str) -> None:
        """The object stays killed, whatever its spec has, until a newer generation arrives."""
        self._killed_behind.add(key)

    def remove(self, item: Json) -> bool:
        """Remove the object, unless the deletion is of an older object of the same name."""
        key = key_of(item)
        known = self._items.get(key)
        if known is None or known["metadata"].get("uid") != item["metadata"].get("uid"):
            return False
        self._forget(key)
        return True

    def replace(self, namespace: str | None, items: Iterable[Json]) -> set[str]:
        """Store a complete list of a namespace (None: of all). Returns the keys of the changed objects."""
        different: set[str] = set()
        present: set[str] = set()
        for item in items:
            key = key_of(item)
            present.add(key)
            if self._accept(key, item) if self._is_set_back(key, item) else self.put(item):
                different.add(key)
        for key in [key for key in self._items if key not in present and _within(key, namespace)]:
            self._forget(key)
            different.add(key)
        return different

    def _is_set_back(self, key: str, item: Json) -> bool:
        """Whether this is the second list in a row that has the same older generation."""
        known, generation = self._items.get(key), generation_of(item)
        if known is None or generation >= generation_of(known):
            self._behind.pop(key, None)
            return False
        if self._behind.get(key) == generation:
            _log.warning("%s %s was set back to generation %d", self.kind, key, generation)
            return True
        self._behind[key] = generation
        return False

    def _accept(self, key: str, item: Json) -> bool:
        self._forget(key)
        self._items[key] = item
        return True

    def _doubt(self, key: str, item: Json) -> bool:
        if key not in self._killed_behind and raw_kill_switch(item) and not raw_kill_switch(self._items[key]):
            _log.warning("%s %s: an older version is killed, and the kill wins", self.kind, key)
            self._killed_behind.add(key)
            return True
        return False

    def _forget(self, key: str) -> None:
        self._items.pop(key, None)
        self._behind.pop(key, None)
        self._killed_behind.discard(key)


def _within(key: str, namespace: str | None) -> bool:
    return namespace is None or key.partition("/")[0] == namespace
