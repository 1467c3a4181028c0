"""How a pair's servers run in a cluster: what the operator makes their Deployment of. Nothing of it counts on a laptop.

Names follow Kubernetes' core/v1 API, so that what is known of pods needs no second vocabulary.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

# Kubernetes' qualified names and label values: what does not fit would be refused with the Deployment only.
_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_IMAGE_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9._/:@]*$"

LabelKey = Annotated[str, Meta(pattern=_KEY_PATTERN, max_length=317)]
LabelValue = Annotated[str, Meta(pattern=_VALUE_PATTERN, max_length=63)]
Quantity = Annotated[str, Meta(pattern=_QUANTITY_PATTERN, max_length=32, description="An amount such as 500m or 16Gi.")]


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What a server asks for beside its GPUs."""

    requests: Annotated[dict[LabelKey, Quantity], Meta(max_length=32, description="What it gets at least.")] = {}
    limits: Annotated[dict[LabelKey, Quantity], Meta(max_length=32, description="What it gets at most.")] = {}


class Toleration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A taint of nodes that servers may run on all the same, as in a pod's spec."""

    key: Annotated[LabelKey | None, Meta(description="Key of the taint; without it, every taint.")] = None
    operator: Annotated[Literal["Exists", "Equal"], Meta(description="How the value is compared.")] = "Equal"
    value: Annotated[LabelValue | None, Meta(description="Value of the taint, for operator Equal.")] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Meta(description="Effect of the taint; without it, every effect."),
    ] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=2_147_483_647)] | None,
        Meta(description="How long NoExecute is tolerated; without it, for ever."),
    ] = None


class Storage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Where checkpoints lie: a volume that every server mounts read-only."""

    claim: Annotated[str, Meta(pattern=_NAME_PATTERN, max_length=253, description="Name of a PersistentVolumeClaim.")]
    mount_path: Annotated[
        str, Meta(pattern=r"^/[^:]*$", max_length=1024, description="Where it is mounted; sources are relative to it.")
    ] = "/models"


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The servers of a pair in a cluster."""

    image: Annotated[
        Annotated[str, Meta(pattern=_IMAGE_PATTERN, max_length=512)] | None,
        Meta(description="Triton with Slipstream's engine; without it, the operator's own setting."),
    ] = None
    replicas: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(description="Number of servers; without it, one at first, and then an autoscaler's business."),
    ] = None
    gpus: Annotated[int, Meta(ge=0, le=64, description="GPUs of each server; 0 runs on CPUs.")] = 1
    resources: Annotated[Resources, Meta(description="CPU, memory and other resources of each server.")] = Resources()
    node_selector: Annotated[
        dict[LabelKey, LabelValue], Meta(max_length=32, description="Labels that a node must have.")
    ] = {}
    tolerations: Annotated[
        tuple[Toleration, ...], Meta(max_length=32, description="Taints that the servers tolerate.")
    ] = ()
    affinity: Annotated[
        dict[str, Any] | None, Meta(description="Scheduling constraints, as a pod's spec has them.")
    ] = None
    storage: Annotated[
        Storage | None, Meta(description="Volume with the checkpoints; not needed for the embedded pair.")
    ] = None
    startup_seconds: Annotated[
        int, Meta(ge=10, le=86_400, description="How long a server may load before it is started anew.")
    ] = 1800
    drain_seconds: Annotated[
        int, Meta(ge=0, le=3600, description="How long running answers may go on when a server has to leave.")
    ] = 120
