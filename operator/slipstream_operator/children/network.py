"""The clients that may connect to a pair's servers, which themselves have no authentication."""

from __future__ import annotations

from typing import Any

from slipstream_operator.children.identity import TRITON, Owner, child, selector
from slipstream_operator.types import KubeObject


def network_policy(owner: Owner, *, ingress: tuple[KubeObject, ...], between_pods: bool = False) -> dict[str, Any]:
    """The NetworkPolicy with the rules `ingress`, which name Triton's ports; all other ingress is blocked. Egress stays
    open, since weights may be downloaded from any address. `between_pods`: servers are groups of pods, which connect to
    each other."""
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
