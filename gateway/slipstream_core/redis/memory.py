"""The store of a gateway that runs alone: outcomes stay in its own estimates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slipstream_core.observation import Observation
from slipstream_core.redis.status import StoreStatus


class MemoryStore:
    """An `OutcomeStore` without other replicas: it has nobody to tell and nothing to deliver."""

    def append(self, observation: Observation) -> None:
        """Does nothing: what this gateway saw is in its estimates already."""

    async def run(self, apply: Callable[[Observation], None]) -> None:
        """Waits until it is cancelled; `apply` is never called."""
        await asyncio.get_running_loop().create_future()

    async def aclose(self) -> None:
        """Nothing to close."""

    def status(self) -> StoreStatus:
        """All is well, and nothing is counted."""
        return StoreStatus()
