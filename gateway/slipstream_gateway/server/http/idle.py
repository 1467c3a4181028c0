"""The connections of one worker on which no request runs: they are closed when the worker has too many."""

from __future__ import annotations

from typing import Protocol


class Closable(Protocol):
    @property
    def has_unsent(self) -> bool:
        """Whether its client has not taken all of the last answer yet."""
        ...

    def close_idle(self) -> None:
        """Closes the connection now. Nothing runs on it."""
        ...


class IdleConnections:
    """Kept in the order in which they became idle. A connection is idle from when it is made, and again from the end of
    an answer, until the head of a request is whole: a client cannot stay young by sending a head bit by bit."""

    def __init__(self) -> None:
        self._order: dict[Closable, None] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, connection: Closable) -> None:
        """Makes `connection` the youngest."""
        self._order.pop(connection, None)
        self._order[connection] = None

    def discard(self, connection: Closable) -> None:
        self._order.pop(connection, None)

    def close_idlest(self) -> bool:
        """Closes the connection that has been idle for longest, and one whose client has not taken all of its answer
        only where there is no other. False where there is none."""
        if not self._order:
            return False
        connection = next((one for one in self._order if not one.has_unsent), next(iter(self._order)))
        self.discard(connection)
        connection.close_idle()
        return True
