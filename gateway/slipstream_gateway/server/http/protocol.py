"""uvicorn's HTTP protocol with bounds on the resources of a client before its request is admitted.

A request that arrives in one piece costs a few comparisons more; timers start only for heads and bodies in pieces.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import urllib.parse
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slipstream_gateway.server.http.bounds import BodyBudget, Bounds
from slipstream_gateway.server.http.cycle import Cycle
from slipstream_gateway.server.http.idle import IdleConnections
from slipstream_gateway.server.http.refusals import (
    TOO_MANY_BODIES,
    TOO_MANY_CONNECTIONS,
    TOO_MANY_PIPELINED,
    Refusal,
    Refused,
    body_too_slow,
    check_head,
    head_too_large,
    malformed,
)

_RESET = struct.pack("ii", 1, 0)


class BoundedHttp(HttpToolsProtocol):
    """One connection. A refused request gets one response with the reason, after the responses that are due before it,
    and the connection ends. At uvicorn's limit of connections the longest idle connections are closed. If all others
    are busy, requests get 429, except probes of the process's health, whose connections end after the response. Beyond
    twice the limit, connections are dropped."""

    def __init__(self, *args: Any, bounds: Bounds, budget: BodyBudget, idle: IdleConnections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._budget = budget
        self._idle = idle
        self._in_head = False
        self._head_bytes = 0  # size of the head in the pieces before this one
        self._piece_bytes = 0
        self._body_bytes = 0
        self._message_bytes = 0  # size of a message that arrives in pieces, with framing
        self._paced_bytes = 0  # size of the body at the last check of its rate
        self._held_bytes = 0  # size reserved in the budget
        self._timer: asyncio.TimerHandle | None = None  # deadline of the head, then of the body
        self._end_timer: asyncio.TimerHandle | None = None
        self._is_deaf = False  # further input is discarded
        self._last_words: Refusal | None = None  # waits for the responses before it
        self._running: Cycle | None = None
        self._is_upgrade = False

    # --- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._make_room()
        if self.limit_concurrency is not None and len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()
            return
        self._idle.add(self)
        transport.set_write_buffer_limits(high=self._bounds.unsent_bytes)
        self._timer = self.loop.call_later(self._bounds.head_s, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.discard(self)
        self._stop_timers()
        self._unset_keepalive_if_required()
        self._tell_gone()
        self._give_back()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Treats a half-closed connection as closed, like most servers. Data that is already written is still sent."""
        self._tell_gone()
        self._hang_up()

    def _tell_gone(self) -> None:
        """Ends the running and queued requests of this connection, because the client is gone."""
        for cycle in (self._running, *(queued for queued, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        self.flow.resume_writing()  # wakes tasks that wait for buffer space

    def shutdown(self) -> None:
        running = self._running
        if running is not None and not running.response_complete:
            # An endless stream, such as the events of a page, registers a callback that ends it.
            if (leave := running.scope.get("slipstream.shutdown")) is not None:
                leave()  # type: ignore[operator]  # an extension of ours to the scope
            running.keep_alive = False
            return
        self._hang_up()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    @property
    def has_unsent(self) -> bool:
        return bool(self.transport.get_write_buffer_size())

    def close_idle(self) -> None:
        """Closes a connection without a running request at once, because the worker has too many connections."""
        self.connections.discard(self)
        self._stop_timers()
        self._unset_keepalive_if_required()
        if self.has_unsent:
            self._reset()
        else:
            self.transport.close()

    def _make_room(self) -> None:
        """Closes the longest idle connections while the worker has too many."""
        limit = self.limit_concurrency
        while limit is not None and len(self.connections) >= limit and self._idle.close_idlest():
            pass

    # --- input

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_deaf:
            return
        self._piece_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._ignore_upgrade(data[exc.args[0] :])
            return
        except httptools.HttpParserError as exc:
            cause = exc.__context__
            self._refuse(cause.refusal if isinstance(cause, Refused) else malformed(exc))
            return
        if self._in_head:
            self._watch_head(len(data))
        elif self.cycle is not None and (self.cycle.more_body or len(data) > HIGH_WATER_LIMIT):
            self._watch_body(len(data))

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._bounds.pipelined:
            raise Refused(TOO_MANY_PIPELINED)
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        # The last piece may include the body, so the exact size is computed only for a large piece.
        bounds = self._bounds
        if self._head_bytes + self._piece_bytes > bounds.head_bytes and self._size() > bounds.head_bytes:
            raise Refused(head_too_large(bounds.head_bytes))
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if (refusal := check_head(method, self.url, version, self.headers, bounds)) is not None:
            raise Refused(refusal)
        self._idle.discard(self)
        self._make_room()
        is_crowded = self.limit_concurrency is not None and self._is_crowded(self.limit_concurrency)
        if is_crowded and self.url.partition(b"?")[0] not in self._bounds.probes:
            raise Refused(TOO_MANY_CONNECTIONS)
        self._is_upgrade = self.parser.should_upgrade()
        if self._is_upgrade:
            return  # the parser now omits the body; see `_ignore_upgrade`
        self._body_bytes = self._message_bytes = self._paced_bytes = 0
        self._fill_scope(method, version)
        self._begin(version, may_stay=not is_crowded)
        self.headers = []  # receives the trailers, which are ignored

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._stop_timer()
        super().on_message_complete()

    def _is_crowded(self, limit: int) -> bool:
        return len(self.connections) >= limit or len(self.tasks) >= limit

    def _fill_scope(self, method: bytes, version: str) -> None:
        url = httptools.parse_url(self.url)
        raw_path = url.path or b"/"  # `http://host` has no path
        path = raw_path.decode("ascii")
        self.scope["method"] = method.decode("ascii")
        self.scope["http_version"] = version
        self.scope["path"] = self.root_path + (urllib.parse.unquote(path) if "%" in path else path)
        self.scope["raw_path"] = self.root_path.encode("ascii") + raw_path
        self.scope["query_string"] = url.query or b""

    def _begin(self, version: str, *, may_stay: bool) -> None:
        """Starts the request, or queues it behind the earlier requests of this connection."""
        before = self.cycle
        self.cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=may_stay and version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
            hang_up=self._hang_up,
            linger=self._linger,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parses the request again without its `upgrade` header (RFC 9110, 7.8: a server may ignore it; Java's client
        sends `h2c` with every first request). The parser took the body for data of the other protocol."""
        self._is_upgrade = False
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += (name, b": ", value, b"\r\n")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"".join([*head, b"\r\n", rest]))

    # --- heads and bodies that arrive in pieces

    def _watch_head(self, count_bytes: int) -> None:
        self._head_bytes += count_bytes
        if self._head_bytes > self._bounds.head_bytes:
            self._refuse(head_too_large(self._bounds.head_bytes))
        elif self._timer is None:
            self._timer = self.loop.call_later(self._bounds.head_s, self._head_late)

    def _head_late(self) -> None:
        self._timer = None
        if self._in_head:
            self._refuse(Refusal(408, f"The request's head did not come within {self._bounds.head_s:g} s."))
        else:
            self._hang_up()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _watch_body(self, count_bytes: int) -> None:
        self._message_bytes += count_bytes
        if not self._budget.take(count_bytes):
            self._refuse(TOO_MANY_BODIES)
            return
        self._held_bytes += count_bytes
        if not self.cycle.more_body:
            return
        if self._message_bytes > 2 * self._body_bytes + self._bounds.framing_bytes:
            self._refuse(Refusal(400, "The request body has more framing than content: send larger chunks."))
        elif self._timer is None:
            self._timer = self.loop.call_later(self._bounds.body_grace_s, self._check_pace)

    def _check_pace(self) -> None:
        """Checks the number of bytes in the last `body_grace_s`, unless this server has paused reading."""
        self._timer = None
        grace_s, came_bytes = self._bounds.body_grace_s, self._body_bytes - self._paced_bytes
        if came_bytes < self._bounds.body_rate_bytes * grace_s and not self.flow.read_paused:
            self._refuse(body_too_slow(self._bounds))
            return
        self._paced_bytes = self._body_bytes
        self._timer = self.loop.call_later(grace_s, self._check_pace)

    def _give_back(self) -> None:
        self._budget.give_back(self._held_bytes)
        self._held_bytes = 0

    # --- closing

    def _refuse(self, refusal: Refusal) -> None:
        """Sends `refusal` after the responses that are due before it, and discards further input. If the body of a
        request is at fault, the refusal is the response to it: the application sees a disconnect, and stops."""
        self._idle.discard(self)
        self._stop_timer()
        self._in_head = False
        self._is_deaf = True
        newest = self.cycle
        if newest is not None and newest.more_body and not newest.response_complete:
            newest.disconnected = True
            newest.message_event.set()
            if self.pipeline and self.pipeline[0][0] is newest:
                self.pipeline.popleft()
            elif newest.response_started:
                self._hang_up()
                return
            else:
                self._running = None
        if self._running is None or self._running.response_complete:
            self._say_last(refusal)
        else:
            self._last_words = refusal

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._give_back()
        super().on_response_complete()
        if self._running is None or not self._running.response_complete:
            return
        if self._last_words is not None:
            self._say_last(self._last_words)
        elif not self._is_deaf and not self.transport.is_closing():
            self._idle.add(self)

    def _say_last(self, refusal: Refusal) -> None:
        self._last_words = None
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.transport.write(refusal.answer())
            self._linger()

    def _linger(self) -> None:
        """Closes the sending half and discards input for `linger_s`: closing a socket with unread input resets the
        connection, and the client would lose the last response (RFC 9112, 9.6)."""
        self._is_deaf = True
        self._stop_timer()
        if self.transport.is_closing() or self._end_timer is not None:
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._end_timer = self.loop.call_later(self._bounds.linger_s, self._hang_up)

    def _hang_up(self) -> None:
        """Closes when the written data is sent. A client that reads nothing of it for `flush_s` is disconnected."""
        self._idle.discard(self)
        self._stop_timers()
        self.transport.close()
        self._flush(-1)

    def _flush(self, left_before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left == left_before:
            self._reset()
        elif left:
            self._end_timer = self.loop.call_later(self._bounds.flush_s, self._flush, left)

    def _reset(self) -> None:
        """Ends the connection with a reset, so that the kernel also drops the data buffered for this client."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_timers(self) -> None:
        self._stop_timer()
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
