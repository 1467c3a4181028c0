"""Checks of third-party engines: whether speculation changes the answers of a server."""

from slipstream_gateway.conformance.conformance import CheckCount, Conformance, ReplicaConformance

__all__ = ["CheckCount", "Conformance", "ReplicaConformance"]
