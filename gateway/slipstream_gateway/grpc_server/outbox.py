"""What one connection sends, and the calls that wait until the client takes more."""

from __future__ import annotations

import asyncio

from slipstream_gateway.grpc_server.frames import BrokenProtocol, ErrorCode
from slipstream_gateway.grpc_server.turns import Turns

WOKEN_CALLS = 16
"""Waking these costs as much as a small frame."""
_FULL_BYTES = 256 * 1024  # beyond which calls wait for the next turn of the event loop
_MAX_UNSENT_BYTES = 4 * 1024 * 1024  # of answers to control frames and refused calls, for a client that reads nothing


class Outbox:
    """Bytes for one `transport`. What is sent within one turn of the event loop leaves in one system call."""

    def __init__(self, transport: asyncio.Transport, turns: Turns) -> None:
        self.is_full = False
        """Whether calls wait before they send more."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._turns = turns
        self._parts: list[bytes] = []
        self._size = 0
        self._is_paused = False
        self._is_closed = False
        self._writers: list[asyncio.Future[None]] = []

    def send(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _FULL_BYTES:
            self.is_full = True

    def answer(self, data: bytes) -> None:
        """Sends the answer to a control frame. Raises `BrokenProtocol` like `check_unsent`."""
        self.check_unsent()
        self.send(data)

    def check_unsent(self) -> None:
        """Raises `BrokenProtocol` if the client sends frames and reads no answers."""
        if self._transport.get_write_buffer_size() + self._size > _MAX_UNSENT_BYTES:
            raise BrokenProtocol(ErrorCode.ENHANCE_YOUR_CALM, "a client sends frames and reads no answers")

    def flush(self) -> None:
        """Writes what was sent in this turn."""
        if self._parts and not self._is_closed and not self._transport.is_closing():
            self._transport.write(b"".join(self._parts))
        self._parts.clear()
        self._size = 0
        if self.is_full:
            self._set_fullness()

    def close(self) -> bool:
        """Writes what was sent so far, and nothing after it. Returns whether the client may still read it."""
        self.flush()
        self._is_closed = True
        return self._transport.get_write_buffer_size() <= _MAX_UNSENT_BYTES

    def pause(self) -> None:
        """The transport takes no more."""
        self._is_paused = self.is_full = True

    def resume(self) -> None:
        """The transport takes more again."""
        self._is_paused = False
        self._set_fullness()

    async def writable(self) -> None:
        """Waits until a window has grown or the transport takes more."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._writers.append(waiter)
        await waiter

    def wake_writers(self) -> None:
        """Lets all calls that wait try again."""
        writers, self._writers = self._writers, []
        if writers:
            self._turns.spend(len(writers) // WOKEN_CALLS)
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    def _set_fullness(self) -> None:
        self.is_full = self._is_paused or self._size > _FULL_BYTES
        if not self.is_full:
            self.wake_writers()
