"""The decision: pure functions from a request, its profile and its route to an arm."""

from slipstream_gateway.routing.decide import Health, decide
from slipstream_gateway.routing.explain import explanation

__all__ = ["Health", "decide", "explanation"]
