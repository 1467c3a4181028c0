"""The small children of a pair: the servers' account, their Service, who may connect, and how many may be evicted."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream_operator.children.identity import TRITON, Owner, child, selector
from slipstream_operator.types import KubeObject

LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
"""The label of a group's leader."""


def service_account(owner: Owner, annotations: Mapping[str, str]) -> KubeObject:
    """The servers' identity. It has no rights in the cluster, and no pod gets its token; by `annotations` a cloud may
    know it."""
    account = child("v1", "ServiceAccount", owner, automountServiceAccountToken=False)
    if annotations:
        account["metadata"]["annotations"] = dict(annotations)
    return account


def service(owner: Owner, *, leaders_only: bool = False) -> KubeObject:
    """The Service of the ready servers, by whose EndpointSlices gateways find them. A server that is loading or
    draining gets no requests. `leaders_only`: servers are groups of pods, whose leaders get the requests.

    This is the default of `publishNotReadyAddresses`, a field that the API server drops if it has the default.
    """
    ports = [
        {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
        for name, port in owner.software.ports.items()
    ]
    wanted = server_labels(owner, leaders_only=leaders_only)
    return child("v1", "Service", owner, spec={"type": "ClusterIP", "selector": wanted, "ports": ports})


def server_labels(owner: Owner, *, leaders_only: bool) -> dict[str, str]:
    """The labels of the pods that get requests: one for each server."""
    return selector(owner) | (LEADER if leaders_only else {})


def disruption_budget(owner: Owner, *, api_version: str) -> KubeObject:
    """A budget of one eviction at a time, with any number of replicas. With a minimum, the node of a single server
    could never be drained, although the Deployment replaces the server."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector(owner)}}
    return child(api_version, "PodDisruptionBudget", owner, spec=spec)


def network_policy(owner: Owner, *, ingress: tuple[KubeObject, ...], between_pods: bool = False) -> KubeObject:
    """The NetworkPolicy with the rules `ingress`, which name Triton's ports; all other ingress is blocked, since the
    servers have no authentication. Egress stays open: weights may be downloaded from any address. `between_pods`:
    servers are groups of pods, which connect to each other."""
    rules = [_for_ports_of(owner, rule) for rule in ingress]
    if between_pods:
        rules.append({"from": [{"podSelector": {"matchLabels": selector(owner)}}]})
    spec = {"podSelector": {"matchLabels": selector(owner)}, "policyTypes": ["Ingress"], "ingress": rules}
    return child("networking.k8s.io/v1", "NetworkPolicy", owner, spec=spec)


def _for_ports_of(owner: Owner, rule: KubeObject) -> KubeObject:
    """`rule` with the ports of the owner's program: vLLM has one for requests and metrics."""
    if owner.software is TRITON or "ports" not in rule:
        return rule
    [number] = owner.software.ports.values()
    ports = {port.get("protocol", "TCP"): {**port, "port": number} for port in rule["ports"]}
    return {**rule, "ports": list(ports.values())}
