"""The LeaderWorkerSet of a pair whose servers have several nodes each.

https://lws.sigs.k8s.io: a group of pods that are started, replaced and counted together.
"""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.naming import group_name
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.deployment import replicas_to_write
from slipstream_operator.children.identity import Owner, child
from slipstream_operator.children.pod import pod_template
from slipstream_operator.children.vllm import LEADER_RANK
from slipstream_operator.types import KubeObject, ServingDefaults

_WORKER_RANK = "$(LWS_WORKER_INDEX)"


def leader_worker_set(
    pair: ModelPair, owner: Owner, *, defaults: ServingDefaults, live: KubeObject | None
) -> dict[str, Any]:
    """The LeaderWorkerSet; `live` is the present one. If one pod of a group restarts, the whole group does: its
    processes cannot find each other again."""
    serving = pair.spec.serving or Serving()
    leader, worker = (pod_template(pair, owner, defaults=defaults, rank=rank) for rank in (LEADER_RANK, _WORKER_RANK))
    spec: dict[str, Any] = {
        "leaderWorkerTemplate": {
            "size": serving.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": leader,
            "workerTemplate": worker,
        },
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": _rolling(serving),
        },
        "startupPolicy": "LeaderCreated",
    }
    replicas = replicas_to_write(serving, live)
    if replicas is not None:
        spec["replicas"] = replicas
    group = child("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", owner, spec=spec)
    group["metadata"] |= {
        "name": group_name(owner.child_name),
        # Its controller, and queues that admit whole groups, read the pair's own labels and annotations here.
        "labels": {**serving.labels, **group["metadata"]["labels"]},
        "annotations": dict(serving.annotations),
    }
    return group


def _rolling(serving: Serving) -> dict[str, Any]:
    """A LeaderWorkerSet has no strategy that ends all groups first: none of them is needed meanwhile instead."""
    update = serving.update
    if update.strategy == "Recreate":
        return {"maxSurge": 0, "maxUnavailable": "100%"}
    return {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable}
