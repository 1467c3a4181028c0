"""The number of a pair's servers that may be evicted at a time, such as when nodes are drained."""

from __future__ import annotations

from typing import Any

from slipstream_operator.children.identity import Owner, child, selector


def disruption_budget(owner: Owner, *, api_version: str) -> dict[str, Any]:
    """A budget of one eviction at a time, with any number of replicas. With a minimum, the node of a single server
    could never be drained, although the Deployment replaces the server."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector(owner)}}
    return child(api_version, "PodDisruptionBudget", owner, spec=spec)
