"""The replicas of one arm: which one is next, and how one that fails, or is slow, leaves and comes back."""

from slipstream_gateway.upstreams.pool.breaker import Circuit
from slipstream_gateway.upstreams.pool.occupancy import Batch, Occupancy
from slipstream_gateway.upstreams.pool.pool import Pool
from slipstream_gateway.upstreams.pool.replica import Replica, ReplicaState

__all__ = ["Batch", "Circuit", "Occupancy", "Pool", "Replica", "ReplicaState"]
