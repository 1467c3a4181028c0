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
    child_name,
    label_value,
)
from slipstream_core.manifest.objects import API_VERSION

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
    """The ModelPair that children belong to, and the program of its servers."""

    name: str
    namespace: str
    uid: str
    software: Software


def selector(owner: Owner) -> dict[str, str]:
    """The selector of the servers of `owner`. A Deployment's selector can never be changed, so it is minimal."""
    return {NAME: f"slipstream-{owner.software.name}", PAIR_LABEL: label_value(owner.name)}


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
            "name": child_name(owner.name),
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
