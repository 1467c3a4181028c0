"""Where limits are decided: by all replicas together while Redis is reachable, otherwise by this process alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slipstream_core.rate_limits import Charge, Grant, InUse, Limits, Refusal, Use

from slipstream_gateway.access.local_limits import LocalLimits

_OPEN = Grant()


class SharedLimits(Protocol):
    """Limits that the replicas share."""

    @property
    def connected(self) -> bool: ...

    async def admit(self, key_id: str, limits: Limits, charge: Charge) -> Grant | Refusal | None:
        """The result; None if Redis did not respond within the deadline, or has failed recently."""
        ...

    def settle(self, use: Use) -> None:
        """Frees the places and corrects the charge. Never waits, never raises."""
        ...

    async def run(self) -> None:
        """Renews the held places, until cancelled."""
        ...

    async def aclose(self) -> None: ...


class SharedUsage(Protocol):
    """The usage of the shared limits."""

    async def read(self, callers: Sequence[tuple[str, Limits]]) -> Sequence[InUse] | None:
        """The usage per caller, in their order; None if Redis did not respond within a deadline."""
        ...

    async def aclose(self) -> None: ...


class Limiter:
    """Uses `shared` first, then the local limits. A grant is settled where it was made. `usage` reads callers' usage of
    the shared limits, for display."""

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
