"""Carries what an engine's thread generates to Triton without making a step wait.

Handing a response to Triton takes a round trip to another process. The engine's thread only appends to a list;
one sending thread does the round trips. What a request collected while the sender was busy goes out as one
response, so that under load fewer and larger responses are sent instead of a growing queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from slipstream_engine.served import Reply
from slipstream_engine.types import Chunk


class Item(Protocol):
    """Part of an answer. `last` is True for its end."""

    @property
    def last(self) -> bool: ...


Address = TypeVar("Address")
Sent = TypeVar("Sent", bound=Item)


def merge_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk that says what `chunks`, in order and not empty, say together."""
    last = chunks[-1]
    return Chunk(
        request_id=last.request_id,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        counts=last.counts,
        finish_reason=last.finish_reason,
        error=last.error,
        error_code=last.error_code,
        margins=None if last.margins is None else tuple(gap for chunk in chunks for gap in chunk.margins or ()),
    )


def merge_replies(replies: Sequence[Reply]) -> Reply:
    """One reply that says what `replies`, in order and not empty, say together."""
    return Reply(status=replies[0].status, data=b"".join(reply.data for reply in replies), last=replies[-1].last)


class Delivery(Generic[Address, Sent]):
    """One request's way out; `merge` makes one item of several. Only the outbox touches `pending` and `queued`."""

    __slots__ = ("address", "merge", "pending", "queued", "stream")

    def __init__(self, address: Address, merge: Callable[[Sequence[Sent]], Sent], *, stream: bool) -> None:
        self.address = address
        self.merge = merge
        self.stream = stream
        self.pending: list[Sent] = []
        self.queued = False


class Outbox(Generic[Address, Sent]):
    """Sends the items of many requests from one thread, each request's in order.

    `send(address, item)` is called on that thread, once for each streamed response and for the last; a
    request that does not stream gets one call with everything. `send` must not raise.
    """

    def __init__(self, send: Callable[[Address, Sent], None]) -> None:
        self._send = send
        self._ready: deque[Delivery[Address, Sent]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="slipstream-outbox", daemon=True)
        self._thread.start()

    def put(self, delivery: Delivery[Address, Sent], item: Sent) -> None:
        """Queue `item`; returns at once. Thread-safe."""
        with self._wake:
            delivery.pending.append(item)
            due = delivery.stream or item.last
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
                items, delivery.pending = delivery.pending, []
                delivery.queued = False
            self._send(delivery.address, items[0] if len(items) == 1 else delivery.merge(items))
