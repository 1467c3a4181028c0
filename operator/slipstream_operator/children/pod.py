"""The pod template of a pair's servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.hashes import template_annotations
from slipstream_operator.children.identity import TRITON, VLLM, Owner, labels, selector
from slipstream_operator.children.lifecycle import grace_period_s
from slipstream_operator.children.preflight import has_draft_model, preflight_container
from slipstream_operator.children.repository import repository_mount, repository_volume
from slipstream_operator.children.security import pod_security
from slipstream_operator.children.service import LEADER
from slipstream_operator.children.triton import triton_container
from slipstream_operator.children.vllm import LEADER_RANK, vllm_container
from slipstream_operator.children.weights import weights_container, weights_mounts, weights_volumes
from slipstream_operator.types import ServingDefaults

_SHM, _TMP = "shm", "tmp"
# Triton and the process that runs the engine exchange tensors there, and so do the GPUs' processes of vLLM by NCCL; a
# container's own 64 MiB are too few.
_SHM_SIZES = {TRITON.name: "256Mi", VLLM.name: "8Gi"}
_TMP_SIZE = "4Gi"
_TMP_MOUNT = {"name": _TMP, "mountPath": "/tmp"}  # nosec B108 # a volume of the pod's own


def pod_template(
    pair: ModelPair,
    owner: Owner,
    *,
    defaults: ServingDefaults,
    repository: Mapping[str, str] | None = None,
    rank: str | None = None,
) -> dict[str, Any]:
    """The pod template, which does not depend on the number of servers. `repository` is the data of the pair's
    ConfigMap, None for servers without one. `rank` is the node's in a server of several nodes."""
    serving = pair.spec.serving or Serving()
    return {
        "metadata": {
            "labels": {**serving.labels, **labels(owner)},
            "annotations": {**serving.annotations, **template_annotations(pair, repository)},
        },
        "spec": _pod_spec(pair, owner, defaults, rank),
    }


def _pod_spec(pair: ModelPair, owner: Owner, defaults: ServingDefaults, rank: str | None) -> dict[str, Any]:
    serving = pair.spec.serving or Serving()
    weights = weights_mounts(pair)
    mounts = [{"name": _SHM, "mountPath": "/dev/shm"}, _TMP_MOUNT, *weights]  # nosec B108
    spec: dict[str, Any] = {
        "serviceAccountName": owner.child_name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_period_s(serving),
        "securityContext": pod_security(),
        **_spread(owner, rank),
        "volumes": [*_scratch_volumes(owner), *weights_volumes(pair)],
    }
    is_vllm = owner.software is VLLM
    image = serving.image or (defaults.vllm_image if is_vllm else defaults.image)
    before = [weights_container(pair, image=image, scratch=_TMP_MOUNT)]
    if is_vllm:
        server = vllm_container(pair, image=image, mounts=mounts, rank=rank, is_ipv6=defaults.is_ipv6)
        spec["containers"] = [server]
    else:
        spec["volumes"].insert(0, repository_volume(owner.child_name))
        spec["containers"] = [triton_container(pair, image=image, mounts=[repository_mount(pair), *mounts])]
    if has_draft_model(pair) and rank in (None, LEADER_RANK):
        before.append(preflight_container(pair, image=image, mounts=[_TMP_MOUNT, *weights]))
    if found := [container for container in before if container is not None]:
        spec["initContainers"] = found
    return spec | _placement(serving)


def _placement(serving: Serving) -> dict[str, Any]:
    """The pair's own settings of pods: which nodes they may have, and how they get there."""
    given = {
        "imagePullSecrets": [{"name": name} for name in serving.image_pull_secrets],
        "priorityClassName": serving.priority_class_name,
        "runtimeClassName": serving.runtime_class_name,
        "schedulerName": serving.scheduler_name,
        "nodeSelector": dict(serving.node_selector),
        "tolerations": [_toleration(toleration) for toleration in serving.tolerations],
        "affinity": serving.affinity,
    }
    return {name: value for name, value in given.items() if value}


def _toleration(toleration: msgspec.Struct) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(toleration)
    return {name: part for name, part in value.items() if part is not None}


def _spread(owner: Owner, rank: str | None) -> dict[str, Any]:
    """The preference to spread servers over zones and nodes. It is not a requirement: a badly placed server is better
    than none. Of groups only the leaders spread: the pods of one group belong together."""
    if rank not in (None, LEADER_RANK):
        return {}
    selected = selector(owner) | (LEADER if rank is not None else {})
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selected},
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ]
    }


def _scratch_volumes(owner: Owner) -> list[dict[str, Any]]:
    return [
        {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": _SHM_SIZES[owner.software.name]}},
        {"name": _TMP, "emptyDir": {"sizeLimit": _TMP_SIZE}},
    ]
