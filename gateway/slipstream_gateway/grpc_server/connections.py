"""What the connections of one server share."""

from __future__ import annotations

from typing import Protocol

from slipstream_gateway.grpc_server.bounds import Bounds
from slipstream_gateway.grpc_server.memory import Memory
from slipstream_gateway.grpc_server.turns import Turns


class Member(Protocol):
    """One of the connections."""

    @property
    def is_idle(self) -> bool:
        """Whether it has no call."""
        ...

    @property
    def has_served(self) -> bool:
        """Whether it has had a call."""
        ...

    def retire(self) -> None:
        """Closes an idle connection in favour of another."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Takes no more calls, waits for those that run and for what they have sent, ends those that take longer, and
        closes."""
        ...


class Connections:
    """`open` has the connections by age."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.memory = Memory(bounds.held_bytes)
        self.turns = Turns()
        self.open: dict[Member, None] = {}

    def add(self, connection: Member) -> bool:
        """Makes room for a new connection; False if there is none."""
        if len(self.open) >= self.bounds.connections:
            idle = [each for each in self.open if each.is_idle]
            if not idle:
                return False
            min(idle, key=lambda each: each.has_served).retire()
        self.open[connection] = None
        return True
