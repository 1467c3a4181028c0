"""The common parts of all children of a pair: name, labels and owner."""

from __future__ import annotations

from typing import Any

import msgspec
from slipstream_core.manifest.naming import (
    COMPONENT,
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
SERVERS_NAME = "slipstream-triton"
SERVERS_COMPONENT = "triton"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The ModelPair that children belong to."""

    name: str
    namespace: str
    uid: str


def selector(pair: str) -> dict[str, str]:
    """The selector of the servers of `pair`. A Deployment's selector can never be changed, so it is minimal."""
    return {NAME: SERVERS_NAME, PAIR_LABEL: label_value(pair)}


def labels(pair: str) -> dict[str, str]:
    """The labels of all children of `pair` and of its pods."""
    return {
        **selector(pair),
        PART_OF: PART_OF_SLIPSTREAM,
        COMPONENT: SERVERS_COMPONENT,
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
            "labels": labels(owner.name),
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
