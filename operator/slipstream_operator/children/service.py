"""The Service in front of a pair's servers. Gateways find the servers by its EndpointSlices."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.naming import GRPC_PORT_NAME

from slipstream_operator.children.identity import Owner, child, selector

PORTS = {GRPC_PORT_NAME: 8001, "http": 8000, "metrics": 8002}
"""Triton's ports by name, in the container and before it. Prometheus finds its own by the name."""


def service(owner: Owner) -> dict[str, Any]:
    """Ready servers alone: one that loads, or drains, gets no requests.

    That is a Service's default (`publishNotReadyAddresses`), which the API server does not keep when it is written.
    """
    return child(
        "v1",
        "Service",
        owner,
        spec={
            "type": "ClusterIP",
            "selector": selector(owner.name),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in PORTS.items()
            ],
        },
    )
