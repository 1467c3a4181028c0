"""One connection of a client: frames in, frames out."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from slipstream_gateway.grpc_server.call import RECEIVE_WINDOW_BYTES, Call
from slipstream_gateway.grpc_server.connections import Connections
from slipstream_gateway.grpc_server.frames import (
    EMPTY_TABLE,
    FRAME_BYTES,
    HEADER,
    LARGEST_WINDOW_BYTES,
    PREFACE,
    RESPONSE_HEAD,
    WINDOW_BYTES,
    BrokenProtocol,
    ErrorCode,
    Flag,
    FrameType,
    Setting,
    frame,
    settings,
    trailers,
    uint32,
    without_padding,
)
from slipstream_gateway.grpc_server.header_blocks import MAX_HEADER_BYTES, Block, HeaderBlocks
from slipstream_gateway.grpc_server.outbox import WOKEN_CALLS, Outbox
from slipstream_gateway.grpc_server.overhead import Overhead
from slipstream_gateway.grpc_server.status import CallFailed, Status

Handler = Callable[[Call], Awaitable[None]]

_MAX_CALLS = 1024
_CLOSE_S = 1.0  # for a connection that is being closed, until it is aborted
_LAST_STREAM = 2**31 - 1
_END_PING = b"shutdown"
_SHORT_BYTES = 1024  # a part of a message that is shorter counts as a frame that carries nothing
_HEADER_BYTES = 32  # decoding them costs as much as a small frame
_CONNECTION_WINDOW_BYTES = 64 * 1024 * 1024
_SETTINGS = settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: _MAX_CALLS,
        Setting.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
    }
)
_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Serves the calls of one client: `handlers` by path."""

    def __init__(self, handlers: Mapping[str, Handler], connections: Connections) -> None:
        self.max_message_bytes = connections.bounds.message_bytes
        self.memory = connections.memory
        self.send_window_bytes = WINDOW_BYTES
        self._handlers = handlers
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self._overhead = Overhead(self._loop.time)
        self._turns = connections.turns
        self._rest = b""
        self._is_waiting = False  # for a later turn; nothing more is received until then
        self._preface_timer: asyncio.TimerHandle | None = None
        self._has_preface = False
        self._has_settings = False
        self._has_empty_table = False
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._knows_end: asyncio.Future[None] = self._loop.create_future()  # the client, that the server stops
        self._calls: dict[int, Call] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._last_stream = 0
        self._stream_window_bytes = WINDOW_BYTES  # of new streams, as the client wants it
        self._ungranted_bytes = 0
        self._header_blocks = HeaderBlocks()
        self._is_ending = False
        self._is_broken = False  # nothing more is read or written
        self._frames: Mapping[int, Callable[[int, int, bytes], None]] = {
            FrameType.DATA: self._on_data,
            FrameType.HEADERS: self._on_headers,
            FrameType.CONTINUATION: self._on_continuation,
            FrameType.RST_STREAM: self._on_reset,
            FrameType.SETTINGS: self._on_settings,
            FrameType.PING: self._on_ping,
            FrameType.WINDOW_UPDATE: self._on_window_update,
            FrameType.PUSH_PROMISE: self._on_push_promise,
        }

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._outbox = Outbox(self._transport, self._turns)
        if not self._connections.add(self):
            self._transport.abort()
            return
        self._preface_timer = self._loop.call_later(self._connections.bounds.preface_s, self._check_preface)
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is gone says nothing
        growth = _CONNECTION_WINDOW_BYTES - WINDOW_BYTES
        self._outbox.send(_SETTINGS + frame(FrameType.WINDOW_UPDATE, 0, 0, uint32(growth)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.open.pop(self, None)
        if self._preface_timer is not None:
            self._preface_timer.cancel()
        self._abort_all()
        self._outbox.wake_writers()
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def data_received(self, data: bytes) -> None:
        self._rest = self._rest + data if self._rest else data
        if not self._is_waiting:
            self.read_on()

    # Turns

    def read_on(self) -> None:
        """Handles the whole frames that have arrived, or as many as this turn has room for."""
        if self._is_broken or self._transport.is_closing():
            return
        has_waited = self._is_waiting
        try:
            self._rest = self._rest[self._read_frames(self._rest) :]
        except BrokenProtocol as exc:
            self._break(exc)
            return
        if self._is_waiting:
            self._turns.wait(self)
        if self._is_waiting and not has_waited:
            self._transport.pause_reading()
        elif has_waited and not self._is_waiting:
            self._transport.resume_reading()

    # Call

    def response_head(self) -> bytes:
        if self._has_empty_table:
            return RESPONSE_HEAD
        self._has_empty_table = True
        return EMPTY_TABLE + RESPONSE_HEAD

    def send_frame(self, kind: FrameType, flags: int, stream: int, payload: bytes) -> None:
        if kind == FrameType.DATA:
            self._overhead.earn()
        self._outbox.send(frame(kind, flags, stream, payload))

    def grant(self, stream: int, size: int) -> None:
        self.send_frame(FrameType.WINDOW_UPDATE, 0, stream, uint32(size))

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full

    async def writable(self) -> None:
        await self._outbox.writable()

    # Connections

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    @property
    def has_served(self) -> bool:
        return self._last_stream > 0

    def retire(self) -> None:
        self._connections.open.pop(self, None)
        self._is_ending = True
        self._go_away(ErrorCode.NO_ERROR)
        self._close()
        self._loop.call_later(_CLOSE_S, self._transport.abort)

    # Server

    async def drain(self, timeout_s: float) -> None:
        deadline_s = self._loop.time() + timeout_s
        if self._has_settings and not self._is_broken:
            await self._announce_end(min(timeout_s, _CLOSE_S))
        self._is_ending = True
        self._go_away(ErrorCode.NO_ERROR)
        if tasks := list(self._tasks.values()):
            await asyncio.wait(tasks, timeout=max(deadline_s - self._loop.time(), 0.0))
        for call in self._calls.values():
            call.end(trailers(Status.UNAVAILABLE, "the server stops"))
        self._abort_all()
        if tasks := list(self._tasks.values()):
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        self._close()
        await asyncio.wait([self._lost], timeout=max(deadline_s - self._loop.time(), _CLOSE_S))
        self._transport.abort()

    async def _announce_end(self, timeout_s: float) -> None:
        """Serves on until the client knows that the server stops: calls that it sent before are not refused (RFC 9113,
        section 6.8)."""
        self._go_away(ErrorCode.NO_ERROR, last_stream=_LAST_STREAM)
        self.send_frame(FrameType.PING, 0, 0, _END_PING)
        await asyncio.wait((self._knows_end, self._lost), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    # Frames in

    def _check_preface(self) -> None:
        if not self._has_settings and not self._is_broken and not self._transport.is_closing():
            self._break(BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a connection did not begin in time"))

    def _break(self, exc: BrokenProtocol) -> None:
        """Ends the connection. Its input stays unread for a while: a reset would discard the reason."""
        _log.warning("A client of the gRPC server broke the protocol: %s", exc)
        self._go_away(exc.code)
        self._abort_all()
        self._is_broken, self._rest = True, b""
        if not self._outbox.close():
            self._transport.abort()
            return
        self._transport.pause_reading()
        self._transport.write_eof()
        self._loop.call_later(_CLOSE_S, self._transport.abort)

    def _read_frames(self, data: bytes) -> int:
        """Handles the whole frames in `data` that the turn has room for; returns where the rest begins."""
        self._is_waiting = False
        at, size = 0, len(data)
        if not self._has_preface:
            if data[: len(PREFACE)] != PREFACE[:size]:
                raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a connection does not begin with HTTP/2's preface")
            if size < len(PREFACE):
                return 0
            self._has_preface, at = True, len(PREFACE)
        while size - at >= HEADER.size:
            high, low, kind, flags, stream = HEADER.unpack_from(data, at)
            length = (high << 8) | low
            if length > FRAME_BYTES:
                raise BrokenProtocol(ErrorCode.FRAME_SIZE_ERROR, f"a frame has {length} bytes")
            start = at + HEADER.size
            if size - start < length:
                break
            if self._turns.is_over:
                self._is_waiting = True
                break
            at = start + length
            self._handle(kind, flags, stream & 0x7FFFFFFF, data[start:at])
        return at

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if not self._has_settings and kind != FrameType.SETTINGS:
            raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._header_blocks.is_open and kind != FrameType.CONTINUATION:
            raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a header block was not continued")
        self._turns.spend(1)
        if kind != FrameType.DATA:
            self._overhead.spend()
        handler = self._frames.get(kind)  # frames of other types are ignored
        if handler is not None:
            handler(flags, stream, payload)

    def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        if not 0 < stream <= self._last_stream:
            raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "data came for a stream that was not opened")
        self._ungranted_bytes += len(payload)
        if self._ungranted_bytes * 2 >= _CONNECTION_WINDOW_BYTES:
            self.grant(0, self._ungranted_bytes)
            self._ungranted_bytes = 0
        call = self._calls.get(stream)
        size, found = len(payload), 0
        if flags & Flag.PADDED:
            payload = without_padding(flags, payload)
        if call is not None:  # else it has ended here
            found = call.receive(payload, size, is_last=bool(flags & Flag.END_STREAM))
            self._turns.spend(found)
        if not found and len(payload) < _SHORT_BYTES:
            self._overhead.spend()

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream & 1:
            raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a stream of a client has an even number")
        if flags & (Flag.PADDED | Flag.PRIORITY):
            payload = without_padding(flags, payload, has_priority=True)
        self._on_block(self._header_blocks.begin(stream, flags, payload))

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        self._on_block(self._header_blocks.go_on(stream, flags, payload))

    def _on_block(self, whole: Block | None) -> None:
        """The head of a new call, or the trailers of one; None until it is whole."""
        if whole is None:
            return
        stream, flags, block = whole
        path = self._header_blocks.path_of(block)
        self._turns.spend(len(block) // _HEADER_BYTES)
        is_last = bool(flags & Flag.END_STREAM)
        if stream <= self._last_stream:
            call = self._calls.get(stream)
            if call is not None and is_last:
                call.half_close()
            elif call is not None:
                raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a stream has two heads")
            return
        self._last_stream = stream
        self._outbox.check_unsent()
        # A call that the client has reset may still be cleaning up: those count as well, but less strictly.
        if self._is_ending or len(self._calls) >= _MAX_CALLS or len(self._tasks) >= 2 * _MAX_CALLS:
            self.send_frame(FrameType.RST_STREAM, 0, stream, uint32(ErrorCode.REFUSED_STREAM))
            return
        call = self._calls[stream] = Call(self, stream, path, self._stream_window_bytes)
        if is_last:
            call.half_close()
        task = self._tasks[stream] = self._loop.create_task(self._run(stream, call))
        task.add_done_callback(lambda _: self._tasks.pop(stream))  # it may end before it has begun

    def _on_reset(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenProtocol(ErrorCode.FRAME_SIZE_ERROR, "a RST_STREAM frame has not 4 bytes")
        if not 0 < stream <= self._last_stream:
            raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a stream was reset that was not opened")
        self._abort(stream)

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        self._has_settings = True
        if flags & Flag.ACK:
            return
        if stream or len(payload) % 6:
            raise BrokenProtocol(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame is not valid")
        window_bytes = self._stream_window_bytes
        for name, value in struct.iter_unpack(">HI", payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                window_bytes = value
            if window_bytes > LARGEST_WINDOW_BYTES:
                raise BrokenProtocol(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
        self._turns.spend((len(payload) + len(self._calls)) // WOKEN_CALLS)
        if window_bytes != self._stream_window_bytes:
            for call in self._calls.values():
                call.send_window_bytes += window_bytes - self._stream_window_bytes
            self._stream_window_bytes = window_bytes
            self._outbox.wake_writers()
        self._outbox.answer(frame(FrameType.SETTINGS, Flag.ACK, 0))

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) != 8:
            raise BrokenProtocol(ErrorCode.FRAME_SIZE_ERROR, "a PING frame is not valid")
        if flags & Flag.ACK:
            if payload == _END_PING and not self._knows_end.done():
                self._knows_end.set_result(None)
        else:
            self._outbox.answer(frame(FrameType.PING, Flag.ACK, 0, payload))

    def _on_window_update(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenProtocol(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE frame has not 4 bytes")
        growth = int.from_bytes(payload, "big") & 0x7FFFFFFF
        owner = self if stream == 0 else self._calls.get(stream)
        if owner is None:
            return  # it has ended here
        owner.send_window_bytes += growth
        if not growth or owner.send_window_bytes > LARGEST_WINDOW_BYTES:
            raise BrokenProtocol(ErrorCode.FLOW_CONTROL_ERROR, "a window was not changed in its limits")
        self._outbox.wake_writers()

    def _on_push_promise(self, flags: int, stream: int, payload: bytes) -> None:
        raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a client sent PUSH_PROMISE")

    # Calls

    async def _run(self, stream: int, call: Call) -> None:
        status, message = Status.INTERNAL, "internal error"  # of a handler that was cancelled by itself, too
        try:
            handler = self._handlers.get(call.path)
            if handler is None:
                raise CallFailed(Status.UNIMPLEMENTED, "the method does not exist")
            await handler(call)
            status, message = Status.OK, ""
        except CallFailed as exc:
            status, message = exc.status, str(exc)
        except Exception:  # the top of the task: a bug with one call must not end the others
            _log.exception("A gRPC call failed.")
        finally:
            call.end(trailers(status, message))
            self._calls.pop(stream, None)

    def _abort(self, stream: int) -> None:
        """The client has left a call."""
        call = self._calls.pop(stream, None)
        if call is not None:
            call.close()
            self._tasks[stream].cancel()
            self._outbox.wake_writers()

    def _abort_all(self) -> None:
        self._is_ending = True
        for stream in list(self._calls):
            self._abort(stream)

    def _go_away(self, code: ErrorCode, last_stream: int | None = None) -> None:
        last = self._last_stream if last_stream is None else last_stream
        self.send_frame(FrameType.GOAWAY, 0, 0, uint32(last) + uint32(code))

    def _close(self) -> None:
        self._outbox.flush()
        self._transport.close()
