"""Sends the responses of many requests to Triton from one thread, so that no engine step waits for Triton.

Sending a response takes a round trip to another process. The engine's thread only appends to a list; the sending
thread makes the round trips. Items of one request that arrive while the sender is busy are merged into one response.
Under load, responses therefore become fewer and larger instead of queueing up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from slipstream_engine.contract.protocol import Reply


class Item(Protocol):
    """Part of an answer. `last` is True for the final part."""

    @property
    def last(self) -> bool: ...


Address = TypeVar("Address")
Sent = TypeVar("Sent", bound=Item)


def merge_replies(replies: Sequence[Reply]) -> Reply:
    """Combine `replies`, in order and not empty, into one."""
    return Reply(status=replies[0].status, data=b"".join(reply.data for reply in replies), last=replies[-1].last)


class PendingItems(Generic[Address, Sent]):
    """Unsent items of one request, which `merge` combines. Only `ResponseSender` uses `pending` and `queued`."""

    __slots__ = ("address", "merge", "pending", "queued", "stream")

    def __init__(self, address: Address, merge: Callable[[Sequence[Sent]], Sent], *, stream: bool) -> None:
        self.address = address
        self.merge = merge
        self.stream = stream
        self.pending: list[Sent] = []
        self.queued = False


class ResponseSender(Generic[Address, Sent]):
    """Sends the items of many requests from one thread, in order within each request.

    `send(address, item)` runs on that thread, once per streamed response and once for the last. A request that does not
    stream gets a single call with all its items. `send` must not raise.
    """

    def __init__(self, send: Callable[[Address, Sent], None]) -> None:
        self._send = send
        self._ready: deque[PendingItems[Address, Sent]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="slipstream-responses", daemon=True)
        self._thread.start()

    def put(self, pending_items: PendingItems[Address, Sent], item: Sent) -> None:
        """Queue `item`; returns at once. Thread-safe."""
        with self._wake:
            pending_items.pending.append(item)
            due = pending_items.stream or item.last
            if due and not pending_items.queued:
                pending_items.queued = True
                self._ready.append(pending_items)
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
                pending_items = self._ready.popleft()
                items, pending_items.pending = pending_items.pending, []
                pending_items.queued = False
            self._send(pending_items.address, items[0] if len(items) == 1 else pending_items.merge(items))
