"""Carries chunks from the engine's step thread to Triton without making a step wait.

Handing a response to Triton takes a round trip to another process. The step thread only appends to a list;
one sending thread does the round trips. What a request collected while the sender was busy goes out as one
response, so that under load fewer and larger responses are sent instead of a growing queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from slipstream_engine.types import Chunk

Address = TypeVar("Address")


def merge(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk that says what `chunks`, in order and not empty, say together."""
    if len(chunks) == 1:
        return chunks[0]
    last = chunks[-1]
    return Chunk(
        request_id=last.request_id,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        counts=last.counts,
        finish_reason=last.finish_reason,
        error=last.error,
        margins=None if last.margins is None else tuple(gap for chunk in chunks for gap in chunk.margins or ()),
    )


class Delivery(Generic[Address]):
    """One request's way out. Only the outbox touches `pending` and `queued`."""

    __slots__ = ("address", "pending", "queued", "stream")

    def __init__(self, address: Address, *, stream: bool) -> None:
        self.address = address
        self.stream = stream
        self.pending: list[Chunk] = []
        self.queued = False


class Outbox(Generic[Address]):
    """Sends the chunks of many requests from one thread, each request's in order.

    `send(address, chunk)` is called on that thread, once for each streamed response and for the last; a
    request that does not stream gets one call with everything. `send` must not raise.
    """

    def __init__(self, send: Callable[[Address, Chunk], None]) -> None:
        self._send = send
        self._ready: deque[Delivery[Address]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="slipstream-outbox", daemon=True)
        self._thread.start()

    def put(self, delivery: Delivery[Address], chunk: Chunk) -> None:
        """Queue `chunk`; returns at once. Thread-safe."""
        with self._wake:
            delivery.pending.append(chunk)
            due = delivery.stream or chunk.finish_reason is not None
            if due and not delivery.queued:
                delivery.queued = True
                self._ready.append(delivery)
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
                delivery = self._ready.popleft()
                chunks, delivery.pending = delivery.pending, []
                delivery.queued = False
            self._send(delivery.address, merge(chunks))
