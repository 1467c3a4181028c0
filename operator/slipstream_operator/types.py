"""Input and output of a reconcile: the values between the pure decisions and the code that carries them out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.reports import UnreachableServers, WithheldServer
from slipstream_core.manifest.status import GatewaysStatus, ModelPairStatus, NameHolder, SpeculationPolicyStatus
from slipstream_core.manifest.versions import GoodVersion

KubeObject = dict[str, Any]
"""An object of the Kubernetes API as plain JSON values."""

DEFAULT_IMAGE = "slipstream-triton:0.3.0"
DEFAULT_VLLM_IMAGE = "slipstream-vllm:0.3.0"


class ServingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of every pair. `image` is Triton with Slipstream's engine, `vllm_image` vLLM with Slipstream's
    plugin. `server_ingress` are the rules of the servers' NetworkPolicy; None: no policy. `foreign_kinds` are the kinds
    of other projects that the cluster has. `is_ipv6`: the first address of its pods is of IPv6.
    `prometheus` is the address of Prometheus for autoscalers of KEDA; None: HorizontalPodAutoscalers are used, in the
    version `hpa_api_version`. `allows_privileges`: pairs may give their pods what `privileges` lists."""

    image: str = DEFAULT_IMAGE
    vllm_image: str = DEFAULT_VLLM_IMAGE
    pdb_api_version: str = "policy/v1"
    server_ingress: tuple[KubeObject, ...] | None = None
    foreign_kinds: frozenset[str] = frozenset()
    is_ipv6: bool = False
    hpa_api_version: str = "autoscaling/v2"
    prometheus: str | None = None
    allows_privileges: bool = True

    @property
    def has_probe_deadlines(self) -> bool:
        """Whether probes have a grace period of their own: they got it with Kubernetes 1.21, as policy/v1 came."""
        return self.pdb_api_version == "policy/v1"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A transition that becomes a Kubernetes Event of the reconciled object."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class NameClaim(NamedTuple):
    """The namespace of the pair that serves a model name, and the one that it is reserved for; None: no namespace."""

    served_by: str | None = None
    holder: NameHolder | None = None


class ObservedCanary(NamedTuple):
    """The servers of a new revision: their Deployment, or LeaderWorkerSet in the form of one, and their pods; None and
    empty where there are none (yet). `facts` is None without evidence; `checks` are the results of its checks."""

    deployment: KubeObject | None = None
    pods: tuple[KubeObject, ...] = ()
    facts: Any = None
    checks: tuple[Any, ...] = ()


class Demand(NamedTuple):
    """The use of a pair by the gateways' reports. `in_use`: within the last minute, or unknown. `waiting`: requests
    wait for a first server."""

    in_use: bool = False
    waiting: bool = False


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of a ModelPair when it is reconciled.

    `raw` is the ModelPair as the API server has it, `last_good` its last usable version, None where the status alone
    may have one. `problems` prevent it from being served, `ignored` are the fields that this version does not
    know, `rejected` the children that could not be written at the last attempt: `Kind/name` and the API server's
    message. `deployment` is its own Deployment, or its LeaderWorkerSet in the form of one, and `pods` are
    its pods; None and empty where there are none (yet). `policy` is the status of the SpeculationPolicy in
    force, None without one; `policy_killed` says that some policy for this pair has its kill switch on. `gateways`
    counts the gateways that apply the spec, `withheld` has the servers that may not speculate: once for each gateway.
    `unreachable` has, for each gateway that has probed, the servers that it cannot reach, None where all answer.
    `last_request` is the time of the last reported request for the pair; None: none since the operator started.
    `demand` is its present use.
    `name` is the state of the model name of the version in use. `canary` has the servers of a new revision that is
    compared with the serving one, and the evidence about it.
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
    demand: Demand = Demand()
    name: NameClaim = NameClaim()
    canary: ObservedCanary = ObservedCanary()
    defaults: ServingDefaults = ServingDefaults()


class PairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for a ModelPair: `children` are all objects that should exist; other children are deleted. None: they
    stay unchanged, because the spec is invalid.

    Every child carries `apiVersion`, `kind`, its namespace and name, labels and owner reference, and only those fields
    that the operator wants to own. `next_look_s`: when to reconcile again without an event; None: no need.
    """

    children: tuple[KubeObject, ...] | None
    status: ModelPairStatus
    notes: tuple[Note, ...] = ()
    next_look_s: float | None = None


class PolicyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for a SpeculationPolicy. `next_look_s`: when to reconcile again without an event; None: no need."""

    status: SpeculationPolicyStatus
    notes: tuple[Note, ...] = ()
    next_look_s: float | None = None
