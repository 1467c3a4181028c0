"""The kinds that the operator reads and writes: their paths, and the labels of the objects that it watches."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from slipstream_core.manifest.naming import MANAGED_BY, OPERATOR, PAIR_LABEL
from slipstream_core.manifest.objects import API_VERSION
from slipstream_core.manifest.reports import REPORT_SELECTOR

FIELD_MANAGER = OPERATOR
CHILD_SELECTOR = f"{MANAGED_BY}={OPERATOR}"


class Kind(StrEnum):
    MODEL_PAIR = "ModelPair"
    SPECULATION_POLICY = "SpeculationPolicy"
    DEPLOYMENT = "Deployment"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    SERVICE = "Service"
    CONFIG_MAP = "ConfigMap"
    SERVICE_ACCOUNT = "ServiceAccount"
    POD_DISRUPTION_BUDGET = "PodDisruptionBudget"
    NETWORK_POLICY = "NetworkPolicy"
    HORIZONTAL_POD_AUTOSCALER = "HorizontalPodAutoscaler"
    SCALED_OBJECT = "ScaledObject"
    INFERENCE_POOL = "InferencePool"
    HTTP_ROUTE = "HTTPRoute"
    POD = "Pod"
    LEASE = "Lease"


# Policies first: the status of a pair has figures of its policy.
PARENTS = (Kind.SPECULATION_POLICY, Kind.MODEL_PAIR)
WORKLOADS = (Kind.DEPLOYMENT, Kind.LEADER_WORKER_SET)
CHILDREN = (
    *WORKLOADS,
    Kind.SERVICE,
    Kind.CONFIG_MAP,
    Kind.SERVICE_ACCOUNT,
    Kind.POD_DISRUPTION_BUDGET,
    Kind.NETWORK_POLICY,
    Kind.HORIZONTAL_POD_AUTOSCALER,
    Kind.SCALED_OBJECT,
    Kind.INFERENCE_POOL,
    Kind.HTTP_ROUTE,
)


class ObjectKey(msgspec.Struct, frozen=True, order=True):
    """The identity of an object; as text, the key in reports and verdicts."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind.value}/{self.name}"


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A kind at the API server. `selector` limits the watched objects; empty for all."""

    kind: Kind
    group: str
    version: str
    plural: str
    selector: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of the kind's API group."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def collection(self, namespace: str | None) -> str:
        """The path of all its objects in a namespace, or in the whole cluster."""
        return (
            f"{self.root}/{self.plural}" if namespace is None else f"{self.root}/namespaces/{namespace}/{self.plural}"
        )

    def path(self, namespace: str, name: str) -> str:
        return f"{self.collection(namespace)}/{name}"


LEADER_WORKER_SETS = Resource(
    kind=Kind.LEADER_WORKER_SET,
    group="leaderworkerset.x-k8s.io",
    version="v1",
    plural="leaderworkersets",
    selector=CHILD_SELECTOR,
)


SCALED_OBJECTS = Resource(
    kind=Kind.SCALED_OBJECT, group="keda.sh", version="v1alpha1", plural="scaledobjects", selector=CHILD_SELECTOR
)
INFERENCE_POOLS = Resource(
    kind=Kind.INFERENCE_POOL,
    group="inference.networking.k8s.io",
    version="v1",
    plural="inferencepools",
    selector=CHILD_SELECTOR,
)
HTTP_ROUTES = Resource(
    kind=Kind.HTTP_ROUTE, group="gateway.networking.k8s.io", version="v1", plural="httproutes", selector=CHILD_SELECTOR
)
FOREIGN = (LEADER_WORKER_SETS, SCALED_OBJECTS, INFERENCE_POOLS, HTTP_ROUTES)
"""Kinds of other projects, which not every cluster has."""


def resources(
    *, pdb_version: str = "v1", hpa_version: str = "v2", foreign: Iterable[Resource] = ()
) -> dict[Kind, Resource]:
    """Every kind by its name. The versions are the server's: `pdb_version` of `policy`, v1 or before Kubernetes 1.21
    v1beta1; `hpa_version` of `autoscaling`, v2 or before 1.23 v2beta2. `foreign` are those of `FOREIGN` that the
    cluster has."""
    group, version = API_VERSION.split("/")
    pods = f"{CHILD_SELECTOR},{PAIR_LABEL}"
    known = (
        Resource(kind=Kind.SPECULATION_POLICY, group=group, version=version, plural="speculationpolicies"),
        Resource(kind=Kind.MODEL_PAIR, group=group, version=version, plural="modelpairs"),
        Resource(kind=Kind.DEPLOYMENT, group="apps", version="v1", plural="deployments", selector=CHILD_SELECTOR),
        Resource(kind=Kind.SERVICE, group="", version="v1", plural="services", selector=CHILD_SELECTOR),
        Resource(kind=Kind.CONFIG_MAP, group="", version="v1", plural="configmaps", selector=CHILD_SELECTOR),
        Resource(kind=Kind.SERVICE_ACCOUNT, group="", version="v1", plural="serviceaccounts", selector=CHILD_SELECTOR),
        Resource(
            kind=Kind.POD_DISRUPTION_BUDGET,
            group="policy",
            version=pdb_version,
            plural="poddisruptionbudgets",
            selector=CHILD_SELECTOR,
        ),
        Resource(
            kind=Kind.NETWORK_POLICY,
            group="networking.k8s.io",
            version="v1",
            plural="networkpolicies",
            selector=CHILD_SELECTOR,
        ),
        Resource(
            kind=Kind.HORIZONTAL_POD_AUTOSCALER,
            group="autoscaling",
            version=hpa_version,
            plural="horizontalpodautoscalers",
            selector=CHILD_SELECTOR,
        ),
        Resource(kind=Kind.POD, group="", version="v1", plural="pods", selector=pods),
        Resource(
            kind=Kind.LEASE,
            group="coordination.k8s.io",
            version="v1",
            plural="leases",
            selector=REPORT_SELECTOR,
        ),
    )
    return {resource.kind: resource for resource in (*known, *foreign)}


def watched(known: dict[Kind, Resource]) -> dict[Kind, Resource]:
    """The kinds that are watched in all namespaces with pairs; the gateways' reports are in one namespace only."""
    return {kind: resource for kind, resource in known.items() if kind is not Kind.LEASE}
