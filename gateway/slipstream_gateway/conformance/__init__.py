"""Checks of engines that somebody else wrote: whether a server's speculation leaves its answers what they are."""

from slipstream_gateway.conformance.conformance import CheckCount, Conformance, ReplicaConformance

__all__ = ["CheckCount", "Conformance", "ReplicaConformance"]
