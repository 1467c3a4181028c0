"""The common parts of all children of a pair: name, labels and owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from slipstream_core.manifest.naming import (
    COMPONENT,
    GRPC_PORT_NAME,
    HTTP_PORT_NAME,
    MANAGED_BY,
    OPERATOR,
    PAIR_LABEL,
    PART_OF,
    PART_OF_SLIPSTREAM,
    canary_name,
    child_name,
    label_value,
)
from slipstream_core.manifest.objects import API_VERSION

from slipstream_operator.types import KubeObject

NAME = "app.kubernetes.io/name"
CANARY_SUFFIX = "-canary"


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """The program of a pair's servers. `name` is the name of its container, `ports` are its ports by name, in the
    container and in the Service. The paths are those of its probes, at the port for HTTP."""

    name: str
    ports: Mapping[str, int]
    ready_path: str
    live_path: str


TRITON = Software(
    name="triton",
    ports={GRPC_PORT_NAME: 8001, HTTP_PORT_NAME: 8000, "metrics": 8002},
    ready_path="/v2/health/ready",
    live_path="/v2/health/live",
)
VLLM = Software(name="vllm", ports={HTTP_PORT_NAME: 8000}, ready_path="/health", live_path="/health")


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The ModelPair that children belong to, and the program of its servers. `canary`: they are those of a new revision
    that is compared with the serving one."""

    name: str
    namespace: str
    uid: str
    software: Software
    canary: bool = False

    @property
    def child_name(self) -> str:
        return canary_name(self.name) if self.canary else child_name(self.name)


def selector(owner: Owner) -> dict[str, str]:
    """The selector of the servers of `owner`. A Deployment's selector can never be changed, so it is minimal."""
    name = f"slipstream-{owner.software.name}{CANARY_SUFFIX if owner.canary else ''}"
    return {NAME: name, PAIR_LABEL: label_value(owner.name)}


def is_canary(item: KubeObject) -> bool:
    """Whether a child or a pod is of a new revision that is compared with the serving one."""
    labels = item["metadata"].get("labels") or {}
    return str(labels.get(NAME, "")).endswith(CANARY_SUFFIX)


def labels(owner: Owner) -> dict[str, str]:
    """The labels of all children of `owner` and of its pods."""
    return {
        **selector(owner),
        PART_OF: PART_OF_SLIPSTREAM,
        COMPONENT: owner.software.name,
        MANAGED_BY: OPERATOR,
    }


def child(api_version: str, kind: str, owner: Owner, **content: Any) -> dict[str, Any]:
    """An object that Kubernetes deletes with its owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": owner.child_name,
            "namespace": owner.namespace,
            "labels": labels(owner),
            # Without blockOwnerDeletion, which needs rights on the owner's finalizers where the server is strict.
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "ModelPair",
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                }
            ],
        },
        **content,
    }
