"""The clients that may reach a pair's servers: Triton itself authenticates nobody."""

from __future__ import annotations

from typing import Any

from slipstream_operator.children.identity import Owner, child, selector
from slipstream_operator.types import KubeObject


def network_policy(owner: Owner, *, ingress: tuple[KubeObject, ...]) -> dict[str, Any]:
    """`ingress` are the rules of a NetworkPolicy; everything else is blocked. Egress stays open: weights may come
    from anywhere."""
    spec = {"podSelector": {"matchLabels": selector(owner.name)}, "policyTypes": ["Ingress"], "ingress": list(ingress)}
    return child("networking.k8s.io/v1", "NetworkPolicy", owner, spec=spec)
