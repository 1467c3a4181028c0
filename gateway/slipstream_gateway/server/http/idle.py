"""The connections of one worker without a running request. They are closed if the worker has too many connections."""

from __future__ import annotations

from typing import Protocol


class Closable(Protocol):
    @property
    def has_unsent(self) -> bool:
        """Whether a part of the last response is still unsent."""
        ...

    def close_idle(self) -> None:
        """Closes the connection now. No request runs on it."""
        ...


class IdleConnections:
    """The idle connections, in the order in which they became idle. A connection is idle from its start, and again from
    the end of a response, until the head of a request is complete: sending a head bit by bit does not make a connection
    younger."""

    def __init__(self) -> None:
        self._order: dict[Closable, None] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, connection: Closable) -> None:
        """Adds `connection` as the youngest."""
        self._order.pop(connection, None)
        self._order[connection] = None

    def discard(self, connection: Closable) -> None:
        self._order.pop(connection, None)

    def close_idlest(self) -> bool:
        """Closes the connection that has been idle for longest. A connection with unsent data is closed only if there
        is no other. False: there is none."""
        if not self._order:
            return False
        connection = next((one for one in self._order if not one.has_unsent), next(iter(self._order)))
        self.discard(connection)
        connection.close_idle()
        return True
