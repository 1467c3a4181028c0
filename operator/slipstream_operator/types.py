"""What goes into a reconcile and what comes out of it: between the pure decisions and what carries them out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.last_good import GoodVersion
from slipstream_core.manifest.reports import UnreachableServers, WithheldServer
from slipstream_core.manifest.status import GatewaysStatus, ModelPairStatus, NameHolder, SpeculationPolicyStatus

KubeObject = dict[str, Any]
"""An object of the Kubernetes API as plain JSON values."""

DEFAULT_IMAGE = "slipstream-triton:0.2.0"


class ServingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every pair that does not say otherwise. `image` is Triton with Slipstream's engine.
    `server_ingress` are the rules of the servers' NetworkPolicy; None: they have no policy."""

    image: str = DEFAULT_IMAGE
    pdb_api_version: str = "policy/v1"
    server_ingress: tuple[KubeObject, ...] | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A transition that people should hear of: it becomes a Kubernetes Event of the object that was reconciled."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class NameClaim(NamedTuple):
    """How it stands with a model name: the namespace of the pair that serves it, and who keeps it, None for nobody."""

    served_by: str | None = None
    holder: NameHolder | None = None


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a ModelPair when it is reconciled.

    `raw` is the ModelPair as the API server has it, `last_good` its last usable version, None where the status alone
    may have one. `problems` are what keeps it from being served as it is, `ignored` the fields that this version does
    not know, `rejected` the children that could not be written at the last attempt: `Kind/name` and the API server's
    words. `deployment` is its own Deployment and `pods` are that
    Deployment's pods; None and empty where there are none (yet). `policy` is the status of the SpeculationPolicy in
    force, None without one; `policy_killed` says that some policy for this pair has its kill switch on. `gateways`
    says how far the spec has come, `withheld` which servers gateways keep from speculating: once for each gateway.
    `unreachable` says what each gateway that has looked cannot reach of the pair's servers, None where all answer it.
    `last_request` is when gateways said last that clients ask for the pair; None: not since the operator started.
    `name` is how it stands with the model name of the version that counts.
    """

    raw: KubeObject
    last_good: GoodVersion | None = None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()
    rejected: tuple[Problem, ...] = ()
    deployment: KubeObject | None = None
    pods: tuple[KubeObject, ...] = ()
    policy: SpeculationPolicyStatus | None = None
    policy_killed: bool = False
    gateways: GatewaysStatus = GatewaysStatus()
    withheld: tuple[WithheldServer, ...] = ()
    unreachable: tuple[UnreachableServers | None, ...] = ()
    last_request: datetime | None = None
    name: NameClaim = NameClaim()
    defaults: ServingDefaults = ServingDefaults()


class PairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a ModelPair needs: `children` are all objects that there should be, and any other of ours goes away. None:
    they stay as they are, because a broken spec says nothing of them.

    Every child carries `apiVersion`, `kind`, its namespace and name, labels and owner reference, and only those fields
    that the operator wants to own. `next_look_s`: when to look again though nothing happens; None: no need.
    """

    children: tuple[KubeObject, ...] | None
    status: ModelPairStatus
    notes: tuple[Note, ...] = ()
    next_look_s: float | None = None


class PolicyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a SpeculationPolicy comes to. `next_look_s`: when to look again though nothing happens; None: no need."""

    status: SpeculationPolicyStatus
    notes: tuple[Note, ...] = ()
    next_look_s: float | None = None
