"""The Service in front of a pair's servers. Gateways find the servers by its EndpointSlices."""

from __future__ import annotations

from typing import Any

from slipstream_operator.children.identity import Owner, child, selector

LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
"""The label of a group's leader."""


def service(owner: Owner, *, leaders_only: bool = False) -> dict[str, Any]:
    """The Service of the ready servers. A server that is loading or draining gets no requests. `leaders_only`: servers
    are groups of pods, whose leaders get the requests.

    This is the default of `publishNotReadyAddresses`, a field that the API server drops if it has the default.
    """
    return child(
        "v1",
        "Service",
        owner,
        spec={
            "type": "ClusterIP",
            "selector": server_labels(owner, leaders_only=leaders_only),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in owner.software.ports.items()
            ],
        },
    )


def server_labels(owner: Owner, *, leaders_only: bool) -> dict[str, str]:
    """The labels of the pods that get requests: one for each server."""
    return selector(owner) | (LEADER if leaders_only else {})
