"""The store of a gateway that runs alone: outcomes stay in its own estimates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slipstream_core.observation import Observation
from slipstream_core.redis.status import StoreStatus


class MemoryStore:
    """An `OutcomeStore` without other replicas: it sends and delivers nothing."""

    def append(self, observation: Observation) -> None:
        """Does nothing: this gateway's estimates already include its own outcomes."""

    async def run(self, apply: Callable[[Observation], None]) -> None:
        """Waits until it is cancelled; `apply` is never called."""
        await asyncio.get_running_loop().create_future()

    async def aclose(self) -> None:
        """Holds no resources."""

    def status(self) -> StoreStatus:
        """Always connected, with all counters at 0."""
        return StoreStatus()
