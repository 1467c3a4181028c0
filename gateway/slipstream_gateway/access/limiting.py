"""Who decides on limits: all replicas together while Redis answers, else this process by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream_core.rate_limits import Charge, Grant, InUse, Limits, Refusal, Use

from slipstream_gateway.access.local_limits import LocalLimits

_OPEN = Grant()


class SharedLimits(Protocol):
    """Limits that the replicas hold in common."""

    @property
    def connected(self) -> bool: ...

    async def admit(self, key_id: str, limits: Limits, charge: Charge) -> Grant | Refusal | None:
        """None: nobody answered within the deadline, or lately."""
        ...

    def settle(self, use: Use) -> None:
        """Gives back and corrects; never waits, never raises."""
        ...

    async def run(self) -> None:
        """Keeps what is held alive, until cancelled."""
        ...

    async def aclose(self) -> None: ...


class SharedUsage(Protocol):
    """What callers use of the limits that the replicas hold in common."""

    async def read(self, callers: Sequence[tuple[str, Limits]]) -> Sequence[InUse] | None:
        """Of each caller, in their order. None: nobody answered within a deadline."""
        ...

    async def aclose(self) -> None: ...


class Limiter:
    """Asks `shared` first. What was granted by one of the two is settled with the same one. `usage` reads what callers
    use of what `shared` grants, for people."""

    def __init__(
        self, local: LocalLimits, shared: SharedLimits | None = None, usage: SharedUsage | None = None
    ) -> None:
        self.local = local
        self.shared = shared
        self.usage = usage

    async def admit(self, key_id: str, limits: Limits, charge: Charge) -> Grant | Refusal:
        if limits.is_open:
            return _OPEN
        if self.shared is not None:
            verdict = await self.shared.admit(key_id, limits, charge)
            if verdict is not None:
                return verdict
        return self.local.admit(key_id, limits, charge)

    def settle(self, use: Use) -> None:
        if use.limits.is_open:
            return
        if not use.grant.shared:
            self.local.settle(use)
        if self.shared is not None:
            self.shared.settle(use)
