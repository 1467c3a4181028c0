"""What an operator makes of one pair and its policy, to be compared between runs: one undisturbed, others killed."""

from __future__ import annotations

import uuid

from tests.operator.operator_process import Cluster, grant
from tests.support.kube import KubeApiServer
from tests.support.kube_client import JSON

PLURALS = ("deployments", "services", "configmaps", "serviceaccounts", "poddisruptionbudgets")
CRASHING = ("tests.operator.crashing_operator",)
# What differs between two runs of the same: identities, versions and times.
_VOLATILE = frozenset(
    {
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "lastTransitionTime",
        "namespace",
        "clusterIP",
        "clusterIPs",
        "generation",
        "checkpoint",
        "slipstream.dev/applied",
    }
)


def declare(cluster: Cluster) -> None:
    cluster.pair("acme")
    cluster.policy("acme")


def is_done(cluster: Cluster) -> bool:
    return len(cluster.children("acme")) == len(PLURALS) and all(
        cluster.condition(plural, "acme", "ResolvedRefs") for plural in ("modelpairs", "speculationpolicies")
    )


def steady(value: object) -> object:
    """`value` without what differs between two runs."""
    if isinstance(value, dict):
        return {name: steady(item) for name, item in value.items() if name not in _VOLATILE}
    return [steady(item) for item in value] if isinstance(value, list) else value


def outcome(cluster: Cluster) -> JSON:
    """All that an operator has made of `acme`."""
    parents = {plural: cluster.get(plural, "acme") for plural in ("modelpairs", "speculationpolicies")}
    found: JSON = {**cluster.children("acme"), **parents}
    return {plural: steady(item) for plural, item in found.items()}


def fresh(kube: KubeApiServer) -> Cluster:
    """A new namespace with `acme` in it, and the operator's rights."""
    namespace = kube.namespace(f"test-{uuid.uuid4().hex[:8]}")
    cluster = grant(kube, namespace)
    declare(cluster)
    return cluster
