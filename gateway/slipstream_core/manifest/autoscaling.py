"""The number of a pair's servers by its load, for pairs whose servers the operator runs.

`minReplicas` and `maxReplicas` are Kubernetes' names (autoscaling/v2).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slipstream_core.manifest.base import Spec

LEAST_IDLE_S = 60
"""Gateways report the use of a pair by the minute."""


class Autoscaling(Spec, frozen=True, kw_only=True):
    """The range of the number of servers, and the load at which it changes."""

    min_replicas: Annotated[
        int,
        Meta(ge=0, le=1000, description="Minimum number of servers. 0: none while there are no requests."),
    ] = 1
    max_replicas: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of servers.")]
    waiting_requests: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Mean number of waiting requests per server above which a server is added."),
    ] = 5
    kv_cache_usage: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="Mean share of the KV cache in use above which servers are added, for engine kind vllm. "
            "Default: 0.8."
        ),
    ] = None
    idle_seconds: Annotated[
        int,
        Meta(
            ge=LEAST_IDLE_S,
            le=86_400,
            description="Time without requests after which the last servers are removed, for minReplicas 0.",
        ),
    ] = 300
    cold_start_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=3600,
            description="Time for which gateways hold a request until the first server is ready, for minReplicas 0.",
        ),
    ] = 300
