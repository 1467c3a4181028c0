"""What a pair's server pods get beyond the operator's defaults: identity, users, volumes, rights on devices, and the
network of the node. Names follow the core/v1 API of Kubernetes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slipstream_core.manifest.base import Label, Spec

_ID_MAX = 2**31 - 1
UserId = Annotated[int, Meta(ge=1, le=_ID_MAX)]
GroupId = Annotated[int, Meta(ge=0, le=_ID_MAX)]

VOLUMES_WITHOUT_PRIVILEGES = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
"""The kinds that the `restricted` Pod Security Standard permits, and images, which are read-only."""


class PodSecurityContext(Spec, frozen=True, kw_only=True):
    """User and groups of the pods' processes, in place of the operator's choice of 1000 for each. What is left out is
    left to the platform: OpenShift takes numbers from the namespace's range for `{}`. Root is refused."""

    run_as_user: Annotated[UserId | None, Meta(description="User of the processes.")] = None
    run_as_group: Annotated[GroupId | None, Meta(description="Primary group of the processes.")] = None
    fs_group: Annotated[GroupId | None, Meta(description="Group that owns the volumes.")] = None
    supplemental_groups: Annotated[
        tuple[GroupId, ...], Meta(max_length=32, description="Further groups of the processes.")
    ] = ()


class VolumeMount(Spec, frozen=True, kw_only=True):
    """A mount of a volume in the servers' container."""

    name: Annotated[Label, Meta(description="Name of the volume.")]
    mount_path: Annotated[str, Meta(pattern=r"^/[^:]*$", max_length=1024, description="Path in the container.")]
    sub_path: Annotated[
        Annotated[str, Meta(max_length=1024)] | None, Meta(description="Path within the volume. Default: its root.")
    ] = None
    read_only: Annotated[bool, Meta(description="Whether the servers cannot write to it.")] = False
