"""The object that runs a pair's servers: a Deployment, or a LeaderWorkerSet for servers of several nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_core.manifest.naming import OPERATOR, group_name
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.container import LEADER_RANK
from slipstream_operator.children.identity import Owner, child
from slipstream_operator.children.pod import pod_template
from slipstream_operator.types import KubeObject

FIELD_MANAGER = OPERATOR

_PULL_S = 900  # a server's image has gigabytes
_WORKER_RANK = "$(LWS_WORKER_INDEX)"


def deployment(owner: Owner, live: KubeObject | None, *, repository: Mapping[str, str] | None) -> KubeObject:
    """The Deployment. `repository` is the data of the pair's ConfigMap, None without one; `live` is the present
    Deployment.

    By default a new server has to be ready before an old one is removed. If no node has room for one more server, a
    change waits, and the condition `Progressing` has the reason.
    """
    serving, update = owner.pair.serving, owner.pair.serving.update
    rolling = {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable}
    spec = {
        "selector": {"matchLabels": owner.selector},
        "strategy": {"type": update.strategy} | ({} if update.strategy == "Recreate" else {"rollingUpdate": rolling}),
        "minReadySeconds": 5,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": progress_deadline_s(serving),
        "template": pod_template(owner, repository=repository),
        **_replicas(serving, live),
    }
    return child("apps/v1", "Deployment", owner, spec=spec)


def leader_worker_set(owner: Owner, live: KubeObject | None) -> KubeObject:
    """The LeaderWorkerSet (https://lws.sigs.k8s.io): groups of pods that are started, replaced and counted together;
    `live` is the present one. If one pod of a group restarts, the whole group does: its processes cannot find each
    other again."""
    serving, update = owner.pair.serving, owner.pair.serving.update
    leader, worker = (pod_template(owner, rank=rank) for rank in (LEADER_RANK, _WORKER_RANK))
    rolling: KubeObject = {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable}
    if update.strategy == "Recreate":  # it cannot end all groups first: none of them is needed meanwhile instead
        rolling = {"maxSurge": 0, "maxUnavailable": "100%"}
    spec = {
        "leaderWorkerTemplate": {
            "size": serving.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": leader,
            "workerTemplate": worker,
        },
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling},
        "startupPolicy": "LeaderCreated",
        **_replicas(serving, live),
    }
    group = child("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", owner, spec=spec)
    group["metadata"] |= {
        "name": group_name(owner.child_name),
        # Its controller, and queues that admit whole groups, read the pair's own labels and annotations here.
        "labels": {**serving.labels, **group["metadata"]["labels"]},
        "annotations": dict(serving.annotations),
    }
    return group


def progress_deadline_s(serving: Serving) -> int:
    """The time without progress after which a rollout is stuck."""
    return serving.startup_seconds + _PULL_S


def _replicas(serving: Serving, live: KubeObject | None) -> dict[str, int]:
    """The number of replicas to write; nothing leaves the field to its other owner.

    Server-side apply resets a field that its only owner leaves out, here to one server. If the pair's own number is
    removed, the present number is therefore applied until another client, such as an autoscaler, owns the field. A pair
    at zero gets its first server back if nothing keeps it there any more.
    """
    if serving.replicas is not None:
        return {"replicas": serving.replicas}
    if live is None or {*_owners_of_replicas(live)} != {(FIELD_MANAGER, "Apply")}:
        return {}
    count = live.get("spec", {}).get("replicas")
    if count == 0 and serving.autoscaling is None:
        return {"replicas": 1}
    return {"replicas": count} if isinstance(count, int) else {}


def _owners_of_replicas(live: KubeObject) -> Iterator[tuple[str, str]]:
    """The (manager, operation) of each entry of `managedFields` with the field `replicas`."""
    for entry in live.get("metadata", {}).get("managedFields", []):
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {}):
            yield entry.get("manager", ""), entry.get("operation", "")
