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
    REVISION_LABEL,
    canary_name,
    child_name,
    label_value,
)
from slipstream_core.manifest.objects import API_VERSION

from slipstream_operator.types import KubeObject

NAME = "app.kubernetes.io/name"


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
    """The ModelPair that children belong to, and the program of its servers. `revision` is the new revision of servers
    that are compared with the serving ones, empty for the latter."""

    name: str
    namespace: str
    uid: str
    software: Software
    revision: str = ""

    @property
    def child_name(self) -> str:
        return canary_name(self.name, self.revision) if self.revision else child_name(self.name)


def selector(owner: Owner) -> dict[str, str]:
    """The selector of the servers of `owner`. A Deployment's selector can never be changed, so it is minimal."""
    name, pair = f"slipstream-{owner.software.name}", label_value(owner.name)
    if not owner.revision:
        return {NAME: name, PAIR_LABEL: pair}
    return {NAME: f"{name}-canary", PAIR_LABEL: pair, REVISION_LABEL: owner.revision}


def revision_label(item: KubeObject) -> str:
    """The new revision that a child or a pod is of; empty for those of the serving one."""
    found: str = (item["metadata"].get("labels") or {}).get(REVISION_LABEL, "")
    return found


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
