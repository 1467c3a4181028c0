"""The object that runs a pair's servers: a Deployment, or a LeaderWorkerSet in the form of one."""

from __future__ import annotations

from slipstream_core.manifest.naming import canary_name, child_name, group_name

from slipstream_operator.cluster.cache import ObjectCache, owner_uid
from slipstream_operator.cluster.resources import WORKLOADS, Kind, ObjectKey
from slipstream_operator.types import KubeObject


def workload_of(cache: ObjectCache, pair: ObjectKey, uid: str, *, revision: str = "") -> KubeObject | None:
    """The workload of `pair`, whose object has the uid `uid`; None if there is none, or another owner has it.
    `revision`: that of this new revision."""
    name = canary_name(pair.name, revision) if revision else child_name(pair.name)
    names = {Kind.DEPLOYMENT: name, Kind.LEADER_WORKER_SET: group_name(name)}
    for kind in WORKLOADS:
        found = cache.get(ObjectKey(kind, pair.namespace, names[kind]))
        if found is not None and owner_uid(found, Kind.MODEL_PAIR) == uid:
            return found if kind is Kind.DEPLOYMENT else _as_deployment(found)
    return None


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
