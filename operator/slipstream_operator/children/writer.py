"""Writes a pair's children: only where they differ from the plan; those that are no longer in the plan are deleted."""

from __future__ import annotations

import hashlib
import logging
from typing import Any, NamedTuple

import msgspec
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeNotFound, KubeRejected
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.naming import (
    MANAGED_BY,
    OPERATOR,
    PAIR_LABEL,
    RELEASE_LABEL,
    child_name,
    group_name,
)

from slipstream_operator.cluster.cache import ObjectCache, key_of
from slipstream_operator.cluster.comparison import has
from slipstream_operator.cluster.resources import CHILDREN, Kind, ObjectKey, Resource
from slipstream_operator.errors import ForeignObject
from slipstream_operator.types import KubeObject

DIGEST_ANNOTATION = "slipstream.dev/applied"

_logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """The number of children that were written or deleted, and the children that the API server rejected or that have
    another owner."""

    written: int
    rejected: tuple[Problem, ...]


class ChildWriter:
    """Applies the children of a plan."""

    def __init__(
        self, client: KubeClient, cache: ObjectCache, resources: dict[Kind, Resource], *, release: str = "slipstream"
    ) -> None:
        """`release` is the operator's release, a label of each child."""
        self._client, self._cache, self._resources, self._release = client, cache, resources, release
        self._settled: dict[ObjectKey, tuple[str, str]] = {}

    async def bring_about(self, pair: KubeObject, wanted: tuple[KubeObject, ...]) -> Outcome:
        """Write the children that differ. Delete those that are not in `wanted`, unless a write was rejected.

        Raises:
            KubeUnavailable, KubeConflict: to be retried.
        """
        problems, writes = [], 0
        for child in wanted:
            try:
                writes += await self._write(pair, child)
            except (KubeRejected, KubeNotFound, ForeignObject) as exc:
                problems.append(Problem(f"{child['kind']}/{child['metadata']['name']}", str(exc)))
        if problems:
            return Outcome(writes, tuple(problems))  # a rejected workload must not cost the running one
        keep = {key_of(child) for child in wanted}
        for child in self._cache.children_of(pair):
            if (key := key_of(child)) not in keep and key.kind in CHILDREN:
                writes += await self._delete(key, child)
        return Outcome(writes, ())

    def forget(self, pair: ObjectKey) -> None:
        """Drop the state of a deleted pair."""
        name = child_name(pair.name)
        for key in [ObjectKey(kind, pair.namespace, each) for kind in CHILDREN for each in (name, group_name(name))]:
            self._settled.pop(key, None)

    async def _write(self, pair: KubeObject, child: KubeObject) -> bool:
        """Write a child if it differs. Returns whether a write was necessary."""
        key, (body, digest) = key_of(child), _to_apply(child, self._release)
        live = self._cache.get(key)
        if live is not None and (has(live, body) or self._settled.get(key) == (digest, _essence(live))):
            return False
        path = self._resources[key.kind].path(key.namespace, key.name)
        if live is None:
            live = await self._client.find(path)
        if live is not None and not _is_ours(live, pair):
            raise ForeignObject(f"{key.kind} {key.name} exists already and has another owner: rename the pair")
        if live is not None and _has_other_selector(live, body):
            return await self._delete(key, live)  # the deletion's event leads back here
        written = await self._client.apply(path, body)
        self._cache.put(written)
        if has(written, body):
            self._settled.pop(key, None)
        else:  # the server normalises some values: 1000m becomes 1
            self._settled[key] = (digest, _essence(written))
        return True

    async def _delete(self, key: ObjectKey, child: KubeObject) -> bool:
        """Delete a child. Returns whether it still existed."""
        if child["metadata"].get("deletionTimestamp"):
            return False
        uid = child["metadata"]["uid"]
        _logger.info("deleting %s, which is no longer needed", key)
        await self._client.delete(self._resources[key.kind].path(key.namespace, key.name), uid=uid)
        self._settled.pop(key, None)
        return True


def _is_ours(live: KubeObject, pair: KubeObject) -> bool:
    """Whether `live` is that pair's child. An owner counts more than labels; without either it is not. The child of a
    deleted pair of the same name is: Kubernetes may not have removed it yet."""
    metadata = live["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            return bool((owner["kind"], owner["name"]) == (Kind.MODEL_PAIR, pair["metadata"]["name"]))
    labels = metadata.get("labels") or {}
    return labels.get(MANAGED_BY) == OPERATOR or PAIR_LABEL in labels


def _has_other_selector(live: KubeObject, body: KubeObject) -> bool:
    """Whether `live` selects other pods than it should, which can never be changed: the pair has another engine."""
    return bool(live["kind"] == Kind.DEPLOYMENT and live["spec"].get("selector") != body["spec"]["selector"])


def _to_apply(child: KubeObject, release: str) -> tuple[KubeObject, str]:
    """`child` with the label of its release, and a digest of this plan, which is also an annotation: without it, the
    removal of a field would not be noticed. The pod template stays unchanged, so no server restarts."""
    metadata = child["metadata"]
    body = {**child, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), RELEASE_LABEL: release}}}
    digest = hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:16]
    body["metadata"]["annotations"] = {**metadata.get("annotations", {}), DIGEST_ANNOTATION: digest}
    return body, digest


def _essence(live: KubeObject) -> str:
    """A digest of the fields of `live` that clients set: without its status and the fields that the server changes."""
    metadata = live["metadata"]
    kept: dict[str, Any] = {name: value for name, value in live.items() if name not in ("status", "metadata")}
    kept["metadata"] = {name: metadata.get(name) for name in ("labels", "annotations", "ownerReferences")}
    return hashlib.sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()
