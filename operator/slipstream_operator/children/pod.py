"""The pod template of a pair's servers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from slipstream_core.manifest.pods import VolumeMount
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.container import LEADER_RANK, LEAVE_S, triton_container, vllm_container
from slipstream_operator.children.identity import LEADER, TRITON, VLLM, Owner, given
from slipstream_operator.children.init_containers import (
    has_draft_model,
    preflight_container,
    weights_container,
    weights_volumes,
)
from slipstream_operator.children.repository import repository_mount, repository_volume, template_annotations
from slipstream_operator.types import KubeObject

USER = 1000  # NVIDIA's Triton image has this number as `triton-server`

_SHM, _TMP = "shm", "tmp"
# Triton and the process that runs the engine exchange tensors there, and so do the GPUs' processes of vLLM by NCCL; a
# container's own 64 MiB are too few.
_SHM_SIZES = {TRITON.name: "256Mi", VLLM.name: "8Gi"}
_EXIT_MARGIN_S = 15  # the program unloads its model after the last answer
_TMP_MOUNT = {"name": _TMP, "mountPath": "/tmp"}  # nosec B108 # a volume of the pod's own


def pod_template(owner: Owner, *, repository: Mapping[str, str] | None = None, rank: str | None = None) -> KubeObject:
    """The pod template, which does not depend on the number of servers. `repository` is the data of the pair's
    ConfigMap, None for servers without one. `rank` is the node's in a server of several nodes."""
    serving = owner.pair.serving
    return {
        "metadata": {
            "labels": {**serving.labels, **owner.labels},
            "annotations": {**serving.annotations, **template_annotations(owner.pair, repository)},
        },
        "spec": _pod_spec(owner, rank),
    }


def _pod_spec(owner: Owner, rank: str | None) -> KubeObject:
    pair, serving, is_vllm = owner.pair, owner.pair.serving, owner.software is VLLM
    checkpoints = list(weights_volumes(pair))
    weights: list[KubeObject] = [
        {"name": one.name, "mountPath": str(one.folder), "readOnly": True} for one in checkpoints
    ]
    shm_size = serving.shm_size or _SHM_SIZES[owner.software.name]
    mounts = [{"name": _SHM, "mountPath": "/dev/shm"}, _TMP_MOUNT, *weights]  # nosec B108
    mounts += [_mount(mount) for mount in serving.volume_mounts]
    if is_vllm:
        server = vllm_container(owner, mounts, rank)
    else:
        mounts.insert(0, repository_mount(pair))
        server = triton_container(owner, mounts)
    before = [weights_container(owner, _TMP_MOUNT)]
    if has_draft_model(pair) and rank in (None, LEADER_RANK):
        before.append(preflight_container(owner, [_TMP_MOUNT, *weights]))
    return {
        "serviceAccountName": serving.service_account_name or owner.child_name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The first process of a container cannot be killed from inside. The watchdogs must be able to do so, and
        # Triton's own `abort` as well.
        "shareProcessNamespace": True,
        # Until no gateway sends requests, until the running answers are finished, and until the program has ended.
        "terminationGracePeriodSeconds": LEAVE_S + serving.drain_seconds + _EXIT_MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            **_users(serving),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            *([] if is_vllm else [repository_volume(owner.child_name)]),
            {
                "name": _SHM,
                "emptyDir": {"medium": "Memory", "sizeLimit": shm_size},
            },
            {"name": _TMP, "emptyDir": {"sizeLimit": serving.tmp_size}},
            *({"name": one.name, **one.source} for one in checkpoints),
            *serving.volumes,
        ],
        "containers": [server],
        **given(
            initContainers=[container for container in before if container is not None],
            topologySpreadConstraints=_spread(owner, rank),
            # The pair's own settings of pods: which nodes they may have, and how they get there.
            imagePullSecrets=[{"name": name} for name in serving.image_pull_secrets],
            priorityClassName=serving.priority_class_name,
            runtimeClassName=serving.runtime_class_name,
            schedulerName=serving.scheduler_name,
            nodeSelector=dict(serving.node_selector),
            tolerations=[given(**msgspec.to_builtins(toleration)) for toleration in serving.tolerations],
            affinity=serving.affinity,
            hostNetwork=serving.host_network or None,
            dnsPolicy="ClusterFirstWithHostNet" if serving.host_network else None,
        ),
    }


def _mount(mount: VolumeMount) -> KubeObject:
    """The API server drops `readOnly: false`."""
    return given(**msgspec.to_builtins(mount) | {"readOnly": mount.read_only or None})


def _users(serving: Serving) -> KubeObject:
    """A new block volume belongs to root; by its group the weights are written to it."""
    if serving.pod_security_context is None:
        return {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return given(**msgspec.to_builtins(serving.pod_security_context))


def _spread(owner: Owner, rank: str | None) -> list[KubeObject]:
    """The preference to spread servers over zones and nodes. It is not a requirement: a badly placed server is better
    than none. Of groups only the leaders spread: the pods of one group belong together."""
    if rank not in (None, LEADER_RANK):
        return []
    selected = owner.selector | (LEADER if rank is not None else {})
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selected},
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]
