"""The replicas of one arm: selection, ejection of failing or slow replicas, and their return."""

from slipstream_gateway.upstreams.pool.breaker import Circuit
from slipstream_gateway.upstreams.pool.pool import Pool
from slipstream_gateway.upstreams.pool.replica import Batch, Occupancy, Replica, ReplicaState

__all__ = ["Batch", "Circuit", "Occupancy", "Pool", "Replica", "ReplicaState"]
