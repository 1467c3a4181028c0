"""Sends the pieces of many responses to Triton from one thread, so that the application never waits for Triton.

Sending takes a round trip to another process. The application's thread only appends to a list; the sending thread makes
the round trips. Pieces of one response that arrive while the sender is busy are merged into one. Under load, pieces
therefore become fewer and larger instead of queueing up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from slipstream_engine.pipe.messages import Piece, merge_pieces

Address = TypeVar("Address")


class PendingPieces(Generic[Address]):
    """Unsent pieces of one response. Only `ResponseSender` uses `pending` and `queued`."""

    __slots__ = ("address", "pending", "queued")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.pending: list[Piece] = []
        self.queued = False


class ResponseSender(Generic[Address]):
    """Sends the pieces of many responses from one thread, in order within each response.

    `send(address, piece)` runs on that thread and must not raise.
    """

    def __init__(self, send: Callable[[Address, Piece], None]) -> None:
        self._send = send
        self._ready: deque[PendingPieces[Address]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="slipstream-responses", daemon=True)
        self._thread.start()

    def put(self, pending_pieces: PendingPieces[Address], piece: Piece) -> None:
        """Queue `piece`; returns at once. Thread-safe."""
        with self._wake:
            pending_pieces.pending.append(piece)
            if not pending_pieces.queued:
                pending_pieces.queued = True
                self._ready.append(pending_pieces)
                self._wake.notify()

    def close(self) -> None:
        """Send what is queued, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ready or self._closing)
                if not self._ready:
                    return
                pending_pieces = self._ready.popleft()
                pieces, pending_pieces.pending = pending_pieces.pending, []
                pending_pieces.queued = False
            self._send(pending_pieces.address, pieces[0] if len(pieces) == 1 else merge_pieces(pieces))
