"""The common parts of all children of a pair: name, labels and owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from slipstream_core.manifest.model_pair import API_VERSION, ModelPair
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

from slipstream_operator.types import KubeObject, ServingDefaults

NAME = "app.kubernetes.io/name"
LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
"""The label of a group's leader."""


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """The program of a pair's servers. `name` is the name of its container, `ports` are its ports by name, in the
    container and in the Service. The paths are those of its probes, at the port for HTTP. After `silence_s` without an
    answer to its liveness probe it is frozen."""

    name: str
    ports: Mapping[str, int]
    ready_path: str
    live_path: str
    silence_s: int


TRITON = Software(
    name="triton",
    ports={GRPC_PORT_NAME: 8001, HTTP_PORT_NAME: 8000, "metrics": 8002},
    ready_path="/v2/health/ready",
    live_path="/v2/health/live",
    silence_s=30,  # threads of its own answer, beside models that load, compile or compute
)
VLLM = Software(
    name="vllm",
    ports={HTTP_PORT_NAME: 8000},
    ready_path="/health",
    live_path="/health",
    # One event loop answers, and sends every token: under load for 40 s not once (vllm-project/vllm#38157). The
    # plugin's watchdog finds a process that is frozen, and not busy, within 40 s.
    silence_s=180,
)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The pair that children belong to, and the program of its servers. Its object has the uid `uid`. `revision` is the
    new revision of servers that are compared with the serving ones, empty for the latter."""

    pair: ModelPair
    software: Software
    defaults: ServingDefaults
    uid: str = ""
    revision: str = ""

    @property
    def name(self) -> str:
        return self.pair.metadata.name

    @property
    def namespace(self) -> str:
        return self.pair.metadata.namespace or "default"

    @property
    def child_name(self) -> str:
        return canary_name(self.name, self.revision) if self.revision else child_name(self.name)

    @property
    def image(self) -> str:
        default = self.defaults.vllm_image if self.software is VLLM else self.defaults.image
        return self.pair.serving.image or default

    @property
    def is_group(self) -> bool:
        return is_group(self.pair)

    @property
    def selector(self) -> dict[str, str]:
        """The selector of all pods. A Deployment's selector can never be changed, so it is minimal."""
        name, pair = f"slipstream-{self.software.name}", label_value(self.name)
        if not self.revision:
            return {NAME: name, PAIR_LABEL: pair}
        return {NAME: f"{name}-canary", PAIR_LABEL: pair, REVISION_LABEL: self.revision}

    @property
    def server_labels(self) -> dict[str, str]:
        """The labels of the pods that get requests: one for each server."""
        return self.selector | (LEADER if self.is_group else {})

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all children and pods."""
        return {
            **self.selector,
            PART_OF: PART_OF_SLIPSTREAM,
            COMPONENT: self.software.name,
            MANAGED_BY: OPERATOR,
        }


def is_group(pair: ModelPair) -> bool:
    """Whether each server of `pair` is a group of pods, one per node."""
    return pair.serving.nodes > 1


def revision_label(item: KubeObject) -> str:
    """The new revision that a child or a pod is of; empty for those of the serving one."""
    found: str = (item["metadata"].get("labels") or {}).get(REVISION_LABEL, "")
    return found


def child(api_version: str, kind: str, owner: Owner, **content: Any) -> KubeObject:
    """An object that Kubernetes deletes with its owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": owner.child_name,
            "namespace": owner.namespace,
            "labels": owner.labels,
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


def given(**fields: Any) -> KubeObject:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {}, ())}
