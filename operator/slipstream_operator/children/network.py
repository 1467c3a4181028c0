"""The clients that may connect to a pair's servers: Triton itself has no authentication."""

from __future__ import annotations

from typing import Any

from slipstream_operator.children.identity import Owner, child, selector
from slipstream_operator.types import KubeObject


def network_policy(owner: Owner, *, ingress: tuple[KubeObject, ...]) -> dict[str, Any]:
    """The NetworkPolicy with the rules `ingress`; all other ingress is blocked. Egress stays open, since weights may be
    downloaded from any address."""
    spec = {"podSelector": {"matchLabels": selector(owner.name)}, "policyTypes": ["Ingress"], "ingress": list(ingress)}
    return child("networking.k8s.io/v1", "NetworkPolicy", owner, spec=spec)
