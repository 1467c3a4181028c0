"""One call: the messages of the client, and those of the server."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from slipstream_gateway.grpc_server.frames import FRAME_BYTES, BrokenProtocol, ErrorCode, Flag, FrameType, uint32
from slipstream_gateway.grpc_server.memory import MESSAGE_BYTES, Memory
from slipstream_gateway.grpc_server.status import CallFailed, Status

RECEIVE_WINDOW_BYTES = 1024 * 1024
"""What a client may send before the call's handler has read it, beyond the message that it is at."""
_PREFIX_BYTES = 5  # of a message: compressed or not, and its length
_READS_PER_TURN = 64  # of waiting messages, before other tasks run


class Link(Protocol):
    """The connection of a call."""

    max_message_bytes: int
    send_window_bytes: int
    memory: Memory

    def response_head(self) -> bytes:
        """The header block at the beginning of a call's answer."""
        ...

    def send_frame(self, kind: FrameType, flags: int, stream: int, payload: bytes) -> None: ...

    def grant(self, stream: int, size: int) -> None:
        """Lets the client send `size` bytes more on `stream`."""
        ...

    async def writable(self) -> None:
        """Waits until a window has grown or the transport takes more."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether the transport takes nothing now."""
        ...


class Call:
    """A stream of HTTP/2 that carries messages (gRPC over HTTP2, length-prefixed messages).

    A handler reads and writes from one task. That task is cancelled when the client resets the stream or its connection
    ends; what is written after that is dropped.
    """

    def __init__(self, link: Link, stream: int, path: str, send_window_bytes: int) -> None:
        self.path = path
        self.send_window_bytes = send_window_bytes
        self.is_half_closed = False
        self.is_closed = False
        self._link = link
        self._stream = stream
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()
        self._ungranted_bytes = 0
        self._held_bytes = 0
        self._failure: CallFailed | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._has_head = False
        self._reads = 0

    async def read(self) -> bytes | None:
        """The client's next message; None once it has sent its last. Raises `CallFailed` for a message that cannot be
        read."""
        self._reads += 1
        if self._reads % _READS_PER_TURN == 0:
            await asyncio.sleep(0)
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self.is_half_closed:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        message = self._messages.popleft()
        self._held(-len(message) - MESSAGE_BYTES)
        self._grant()
        return message

    async def write(self, message: bytes) -> None:
        """Sends a message once the client's windows take it. If that is cancelled in the middle of the message, the
        call ends: the client could not tell the rest of it from another message."""
        if self.is_closed:
            return
        self._send_head()
        data = b"\0" + len(message).to_bytes(4, "big") + message
        link = self._link
        start, size = 0, len(data)
        while start < size and not self.is_closed:
            part = min(size - start, FRAME_BYTES, link.send_window_bytes, self.send_window_bytes)
            if part <= 0 or link.is_full:
                try:
                    await link.writable()
                except asyncio.CancelledError:
                    if start:
                        self.reset()
                    raise
                continue
            link.send_window_bytes -= part
            self.send_window_bytes -= part
            link.send_frame(FrameType.DATA, 0, self._stream, data if part == size else data[start : start + part])
            start += part

    def receive(self, payload: bytes, flow_bytes: int, *, is_last: bool) -> int:
        """Takes a DATA frame of the client, which counts `flow_bytes` in its window. Returns the number of messages
        that it completes. Raises `BrokenProtocol` if the client did not keep to its window."""
        if self.is_closed:  # it was reset here, and its task is about to end
            return 0
        self._ungranted_bytes += flow_bytes
        if self._ungranted_bytes > RECEIVE_WINDOW_BYTES:
            raise BrokenProtocol(ErrorCode.FLOW_CONTROL_ERROR, "a client sent more than its window")
        if self.is_half_closed:
            raise BrokenProtocol(ErrorCode.STREAM_CLOSED, "a client sent data after its end")
        before = len(self._messages)
        if self._failure is None:
            self._take(payload)
        found = len(self._messages) - before
        if self._failure is not None:
            self._drop()
        self.is_half_closed = is_last
        if is_last and self._partial and self._failure is None:
            self._failure = CallFailed(Status.INTERNAL, "the last message is not whole")
        self._grant()
        self.wake()
        return found

    def _take(self, payload: bytes) -> None:
        self._held(len(payload))
        if self._link.memory.is_exhausted:
            self._failure = CallFailed(Status.RESOURCE_EXHAUSTED, "the server holds too many unread bytes")
            return
        size = len(payload) - _PREFIX_BYTES
        if size >= 0 and not self._partial and payload[:_PREFIX_BYTES] == b"\0" + size.to_bytes(4, "big"):
            self._messages.append(payload[_PREFIX_BYTES:])  # one whole message, as nearly always
            self._held(MESSAGE_BYTES - _PREFIX_BYTES)
            return
        partial = self._partial
        partial += payload
        while len(partial) >= _PREFIX_BYTES:
            end = _PREFIX_BYTES + int.from_bytes(partial[1:_PREFIX_BYTES], "big")
            if partial[0]:
                self._failure = CallFailed(Status.UNIMPLEMENTED, "messages must not be compressed")
            elif end - _PREFIX_BYTES > self._link.max_message_bytes:
                self._failure = CallFailed(
                    Status.RESOURCE_EXHAUSTED, f"a message has more than {self._link.max_message_bytes} bytes"
                )
            if self._failure is not None or len(partial) < end:
                return
            self._messages.append(bytes(partial[_PREFIX_BYTES:end]))
            self._held(MESSAGE_BYTES - _PREFIX_BYTES)
            del partial[:end]

    def _held(self, size: int) -> None:
        self._held_bytes += size
        self._link.memory.held_bytes += size

    def _drop(self) -> None:
        """Forgets what no handler will read."""
        self._held(-self._held_bytes)
        self._messages.clear()
        self._partial.clear()

    def half_close(self) -> None:
        """The client has sent its last message."""
        self.receive(b"", 0, is_last=True)

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        """The client has left. What is written from now on is dropped, and so is what was not read."""
        self.is_closed = True
        self._drop()

    def reset(self) -> None:
        """Ends the call without a status."""
        if not self.is_closed:
            self._link.send_frame(FrameType.RST_STREAM, 0, self._stream, uint32(ErrorCode.INTERNAL_ERROR))
            self.close()

    def end(self, block: bytes) -> None:
        """Sends the trailers `block`, unless the call has ended. Later messages are dropped."""
        if self.is_closed:
            return
        self._send_head()
        self._link.send_frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, self._stream, block)
        if not self.is_half_closed:  # the client may stop (RFC 9113, section 8.1)
            self._link.send_frame(FrameType.RST_STREAM, 0, self._stream, bytes(4))
        self.close()

    def _send_head(self) -> None:
        if not self._has_head:
            self._has_head = True
            self._link.send_frame(FrameType.HEADERS, Flag.END_HEADERS, self._stream, self._link.response_head())

    def _grant(self) -> None:
        """Gives the client its window back, but not while messages wait for their reader."""
        if self._ungranted_bytes * 2 >= RECEIVE_WINDOW_BYTES and not self._messages and not self.is_half_closed:
            self._link.grant(self._stream, self._ungranted_bytes)
            self._ungranted_bytes = 0
