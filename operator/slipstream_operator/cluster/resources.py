"""The kinds that the operator reads and writes: their paths, and the labels of the objects that it watches."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from slipstream_core.manifest.model_pair import API_VERSION
from slipstream_core.manifest.naming import MANAGED_BY, OPERATOR, PAIR_LABEL
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
CHILDREN = tuple(kind for kind in Kind if kind not in (*PARENTS, Kind.POD, Kind.LEASE))


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


Scopes = dict[Resource, tuple[str | None, ...]]
"""The namespaces in which each kind is watched; (None,): in all."""


def _resource(kind: Kind, group_version: str, plural: str, selector: str = CHILD_SELECTOR) -> Resource:
    group, _, version = group_version.rpartition("/")
    return Resource(kind=kind, group=group, version=version, plural=plural, selector=selector)


FOREIGN = (
    _resource(Kind.LEADER_WORKER_SET, "leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    _resource(Kind.SCALED_OBJECT, "keda.sh/v1alpha1", "scaledobjects"),
    _resource(Kind.INFERENCE_POOL, "inference.networking.k8s.io/v1", "inferencepools"),
    _resource(Kind.HTTP_ROUTE, "gateway.networking.k8s.io/v1", "httproutes"),
)
"""Kinds of other projects, which not every cluster has."""


def resources(
    *, pdb_version: str = "v1", hpa_version: str = "v2", foreign: Iterable[Resource] = ()
) -> dict[Kind, Resource]:
    """Every kind by its name. The versions are the server's: `pdb_version` of `policy`, v1 or before Kubernetes 1.21
    v1beta1; `hpa_version` of `autoscaling`, v2 or before 1.23 v2beta2. `foreign` are those of `FOREIGN` that the
    cluster has."""
    known = (
        _resource(Kind.SPECULATION_POLICY, API_VERSION, "speculationpolicies", selector=""),
        _resource(Kind.MODEL_PAIR, API_VERSION, "modelpairs", selector=""),
        _resource(Kind.DEPLOYMENT, "apps/v1", "deployments"),
        _resource(Kind.SERVICE, "v1", "services"),
        _resource(Kind.CONFIG_MAP, "v1", "configmaps"),
        _resource(Kind.SERVICE_ACCOUNT, "v1", "serviceaccounts"),
        _resource(Kind.POD_DISRUPTION_BUDGET, f"policy/{pdb_version}", "poddisruptionbudgets"),
        _resource(Kind.NETWORK_POLICY, "networking.k8s.io/v1", "networkpolicies"),
        _resource(Kind.HORIZONTAL_POD_AUTOSCALER, f"autoscaling/{hpa_version}", "horizontalpodautoscalers"),
        _resource(Kind.POD, "v1", "pods", selector=f"{CHILD_SELECTOR},{PAIR_LABEL}"),
        _resource(Kind.LEASE, "coordination.k8s.io/v1", "leases", selector=REPORT_SELECTOR),
    )
    return {resource.kind: resource for resource in (*known, *foreign)}
