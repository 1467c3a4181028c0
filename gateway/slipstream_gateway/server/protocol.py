"""uvicorn's HTTP protocol with bounds on the resources of a client before its request is admitted.

uvicorn bounds the number of connections and the pause after a response. Its protocol stays subclassed for the other
bounds: size and time of a head, pace and framing of a body, the bytes of all bodies, requests in a pipeline, unread
output, and the choice of the connections that are closed when there are too many.

A request that arrives in one piece costs a few comparisons more; timers start only for heads and bodies in pieces.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
import urllib.parse
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slipstream_gateway.api.port_router import Asgi
from slipstream_gateway.server.bounds import Bounds, Refused, check_head
from slipstream_gateway.server.cycle import Cycle
from slipstream_gateway.server.leaving import Leaving

_RESET = struct.pack("ii", 1, 0)


def bounded_http(bounds: Bounds, leaving: Leaving) -> type[asyncio.Protocol]:
    """The value of uvicorn's option `http`: constructs a protocol for each connection of one worker. Once that is
    `leaving`, each response is the last one of its connection."""
    worker = _Worker(bounds, leaving)
    return cast("type[asyncio.Protocol]", functools.partial(BoundedHttp, bounds=bounds, worker=worker))


class _Worker:
    """What the connections of one worker share.

    `free_bytes` is the rest of `bodies_bytes`, `held_bytes` the used part by credential: requests with one credential
    hold at most as much as is left for all others. Bodies that arrive in one small piece are not counted: the number of
    connections bounds them. `idle` has the connections without a running request, in the order in which they became
    idle. A connection is idle from its start, and again from the end of a response, until the head of a request is
    complete: sending a head bit by bit does not make a connection younger."""

    def __init__(self, bounds: Bounds, leaving: Leaving) -> None:
        self.leaving = leaving
        self.free_bytes = bounds.bodies_bytes
        self.held_bytes: Counter[bytes] = Counter()
        self.idle: dict[BoundedHttp, None] = {}


class BoundedHttp(HttpToolsProtocol):
    """One connection. A refused request gets one response with the reason, after the responses that are due before it,
    and the connection ends. At uvicorn's limit of connections the longest idle connections are closed. If all others
    are busy, requests get 429, except probes of the process's health, whose connections end after the response. Beyond
    twice the limit, connections are dropped."""

    pipeline: deque[tuple[Cycle, Asgi]]  # type: ignore[assignment]  # unfinished requests; the first one runs
    cycle: Cycle | None  # type: ignore[assignment]  # the newest request

    def __init__(self, *args: Any, bounds: Bounds, worker: _Worker, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._worker = worker
        self._in_head = False
        self._piece_bytes = 0
        self._body_bytes = 0
        self._message_bytes = 0  # size of a head, then of a body with framing, in the pieces before this one
        self._held_bytes = 0  # size taken from the worker's `free_bytes`
        self._credential = b""  # the one that `_held_bytes` is counted for; empty: none
        self._timer: asyncio.TimerHandle | None = None
        self._discards_input = False

    # --- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._make_room()
        if self.limit_concurrency is not None and len(self.connections) > 2 * self.limit_concurrency:
            transport.abort()
            return
        self._worker.idle[self] = None
        transport.set_write_buffer_limits(high=self._bounds.unsent_bytes)
        self._start_timer(self._bounds.head_s, self._hang_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._worker.idle.pop(self, None)
        self._stop_timer()
        self._end_requests()
        self._release_bodies()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Treats a half-closed connection as closed, like most servers. Data that is already written is still sent."""
        self._end_requests()
        self._hang_up()

    def _end_requests(self) -> None:
        """Ends the running and queued requests of this connection, because the client is gone."""
        for cycle, _ in self.pipeline:
            cycle.disconnect()
        self.pipeline.clear()
        self.flow.resume_writing()  # wakes tasks that wait for buffer space

    def shutdown(self) -> None:
        if not self.pipeline:
            self._hang_up()
            return
        running = self.pipeline[0][0]
        # An endless stream, such as the events of a page, registers a callback that ends it.
        if (leave := running.scope.get("slipstream.shutdown")) is not None:
            leave()  # type: ignore[operator]  # an extension of ours to the scope
        running.keep_alive = False

    def _make_room(self) -> None:
        """Closes the longest idle connections while the worker has too many; those with unsent data only if there is
        no other."""
        limit, idle = self.limit_concurrency, self._worker.idle
        while limit is not None and len(self.connections) >= limit and idle:
            first = next((one for one in idle if not one.transport.get_write_buffer_size()), next(iter(idle)))
            self.connections.discard(first)
            first._hang_up()
            if first.transport.get_write_buffer_size():
                first._reset()

    # --- input

    def data_received(self, data: bytes) -> None:
        if self._discards_input:
            return
        self._piece_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._ignore_upgrade(data[exc.args[0] :])
        except httptools.HttpParserError as exc:
            reason = str(exc).strip().rstrip(".")  # contains no byte of the request
            malformed = Refused(400, f"The request is not valid HTTP: {reason or 'it cannot be read'}.")
            self._refuse(exc.__context__ if isinstance(exc.__context__, Refused) else malformed)
        else:
            if self._in_head:
                self._watch_head(len(data))
            elif self.cycle is not None and (self.cycle.more_body or len(data) > HIGH_WATER_LIMIT):
                self._watch_body(self.cycle, len(data))

    def on_message_begin(self) -> None:
        if len(self.pipeline) > self._bounds.pipelined:
            raise Refused(400, "Too many requests wait on this connection; read some answers first.")
        self._stop_timer()
        self._in_head = True
        self._message_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        # The last piece may include the body, so the exact size is computed only for a large piece.
        bounds = self._bounds
        if self._message_bytes + self._piece_bytes > bounds.head_bytes < self._size():
            raise Refused(431, f"The request's head is over {bounds.head_bytes} bytes.")
        method, version = self.parser.get_method(), self.parser.get_http_version()
        check_head(method, self.url, version, self.headers, bounds)
        self._worker.idle.pop(self, None)
        self._make_room()
        limit = self.limit_concurrency
        is_crowded = limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit)
        if is_crowded and self.url.partition(b"?")[0] not in bounds.probes:
            raise Refused(429, "The gateway has too many open connections.")
        if self.parser.should_upgrade():
            return  # the parser now omits the body; see `_ignore_upgrade`
        self._body_bytes = self._message_bytes = 0
        self._fill_scope(method, version)
        is_last = is_crowded or self._worker.leaving.has_begun
        keep_alive = not is_last and version != "1.0" and self.parser.should_keep_alive()
        self._begin(self.scope, self.app, keep_alive=keep_alive)
        self.headers = []  # receives the trailers, which are ignored

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._stop_timer()
            super().on_message_complete()
            if len(self.pipeline) == 1:
                self.flow.resume_reading()  # a large body has paused it; the end of the connection must be seen

    def _fill_scope(self, method: bytes, version: str) -> None:
        url = httptools.parse_url(self.url)
        raw_path = url.path or b"/"  # `http://host` has no path
        path = raw_path.decode("ascii")
        self.scope["method"] = method.decode("ascii")
        self.scope["http_version"] = version
        self.scope["path"] = self.root_path + (urllib.parse.unquote(path) if "%" in path else path)
        self.scope["raw_path"] = self.root_path.encode("ascii") + raw_path
        self.scope["query_string"] = url.query or b""

    def _begin(self, scope: Any, app: Any, *, keep_alive: bool) -> None:
        """Starts the request, or queues it behind the earlier requests of this connection."""
        self.cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            # An HTTP/1.0 client takes an interim response for the last one (RFC 9110, 10.1.1).
            expect_100_continue=self.expect_100_continue and scope["http_version"] != "1.0",
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )
        self.pipeline.append((self.cycle, app))
        if len(self.pipeline) == 1:
            self._run_first()
        else:
            self.flow.pause_reading()

    def _run_first(self) -> None:
        cycle, app = self.pipeline[0]
        task = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parses the request again without its `upgrade` header (RFC 9110, 7.8: a server may ignore it; Java's client
        sends `h2c` with every first request). The parser took the body for data of the other protocol."""
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += (name, b": ", value, b"\r\n")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"".join([*head, b"\r\n", rest]))

    # --- heads and bodies that arrive in pieces

    def _watch_head(self, count_bytes: int) -> None:
        self._message_bytes += count_bytes
        if self._message_bytes > self._bounds.head_bytes:
            self._refuse(Refused(431, f"The request's head is over {self._bounds.head_bytes} bytes."))
        elif self._timer is None:
            late = Refused(408, f"The request's head did not come within {self._bounds.head_s:g} s.")
            self._start_timer(self._bounds.head_s, self._refuse, late)

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _watch_body(self, cycle: Cycle, count_bytes: int) -> None:
        self._message_bytes += count_bytes
        worker = self._worker
        if not self._held_bytes:
            self._credential = _credential(cycle.scope["headers"])
        most_bytes = worker.free_bytes - (worker.held_bytes[self._credential] if self._credential else 0)
        if count_bytes > most_bytes:
            busy = Refused(429, "The gateway holds as many request bodies as it may; try again.")
            self._refuse(busy, is_of_body=True)
            return
        worker.free_bytes -= count_bytes
        worker.held_bytes[self._credential] += count_bytes
        self._held_bytes += count_bytes
        if not cycle.more_body:
            return
        if self._message_bytes > 2 * self._body_bytes + self._bounds.framing_bytes:
            self._refuse(Refused(400, "The request body has more framing than content: send larger chunks."))
        elif self._timer is None:
            self._start_timer(self._bounds.body_grace_s, self._check_pace, 0)

    def _check_pace(self, before_bytes: int) -> None:
        """Checks the number of bytes in the last `body_grace_s`, unless this server has paused reading."""
        grace_s, rate_bytes = self._bounds.body_grace_s, self._bounds.body_rate_bytes
        if self._body_bytes - before_bytes < rate_bytes * grace_s and not self.flow.read_paused:
            least = f"after {grace_s:g} s at least {rate_bytes} bytes per second are expected"
            self._refuse(Refused(408, f"The request body comes too slowly: {least}."))
        else:
            self._start_timer(grace_s, self._check_pace, self._body_bytes)

    def _release_bodies(self) -> None:
        if not self._held_bytes:
            return
        worker, credential = self._worker, self._credential
        worker.free_bytes += self._held_bytes
        worker.held_bytes[credential] -= self._held_bytes
        if not worker.held_bytes[credential]:
            del worker.held_bytes[credential]
        self._held_bytes = 0

    # --- closing

    def _refuse(self, refused: Refused, *, is_of_body: bool = False) -> None:
        """Responds with `refused` after the responses that are due before it, and discards further input. If the body
        of a request is at fault (`is_of_body`, or it is not complete), it is the response to that request: the
        application sees a disconnect, and stops."""
        self._worker.idle.pop(self, None)
        self._stop_timer()
        self._in_head = False
        self._discards_input = True
        newest = self.cycle
        if newest is not None and (is_of_body or newest.more_body) and not newest.response_complete:
            newest.disconnect()
            self.pipeline.pop()
            if newest.response_started:
                self._hang_up()
                return
        self._begin({"method": "GET", "http_version": "1.1"}, refused, keep_alive=False)

    def on_response_complete(self) -> None:
        cycle, _ = self.pipeline.popleft()
        if not self.pipeline:
            self._release_bodies()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if cycle.ends_early and cycle.response_complete:
            self._linger()
        elif not (cycle.keep_alive and cycle.response_complete):
            self._hang_up()
        elif self.pipeline:
            self._run_first()
        else:
            self._worker.idle[self] = None
            if not self._in_head:
                self._start_timer(self.timeout_keep_alive, self._hang_up)

    def _linger(self) -> None:
        """Closes the sending half and discards input for `linger_s`: closing a socket with unread input resets the
        connection, and the client would lose the last response (RFC 9112, 9.6)."""
        self._discards_input = True
        self._worker.idle[self] = None
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._start_timer(self._bounds.linger_s, self._hang_up)

    def _hang_up(self) -> None:
        """Closes when the written data is sent. A client that reads nothing of it for `flush_s` is disconnected."""
        self._worker.idle.pop(self, None)
        self._stop_timer()
        self.transport.close()
        self._flush(-1)

    def _flush(self, left_before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left == left_before:
            self._reset()
        elif left:
            self._start_timer(self._bounds.flush_s, self._flush, left)

    def _reset(self) -> None:
        """Ends the connection with a reset, so that the kernel also drops the data buffered for this client."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _start_timer(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Replaces the deadline of the connection; it has one at a time."""
        self._stop_timer()
        self._timer = self.loop.call_later(delay_s, call, *args)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _credential(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's credential without its scheme, not verified: a request with a false one is refused at once, and then
    holds nothing. Empty without one."""
    words = next((value.split() for name, value in fields if name == b"authorization"), [])
    return words[-1] if words else b""
