"""How many of a pair's servers may be evicted at a time, as when nodes are drained."""

from __future__ import annotations

from typing import Any

from slipstream_operator.children.identity import Owner, child, selector


def disruption_budget(owner: Owner, *, api_version: str) -> dict[str, Any]:
    """One eviction at a time, with any number of replicas. A minimum would keep the node of a single server from ever
    being drained, although the Deployment replaces the server."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector(owner.name)}}
    return child(api_version, "PodDisruptionBudget", owner, spec=spec)
