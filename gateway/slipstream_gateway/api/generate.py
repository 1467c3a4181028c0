"""`POST /v1/chat/completions`, `/v1/completions` and `/v1/responses`: let in, parse, run, stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from functools import lru_cache

from slipstream_core.errors import DeadlineExceeded, SlipstreamError, UpstreamUnavailable
from slipstream_core.types import Decision, Endpoint, GenerationRequest

from slipstream_gateway.access import Principal
from slipstream_gateway.api.access_control import OPEN_ACCESS, AccessControl, Lease, bill_of
from slipstream_gateway.api.errors import Headers, error_event, error_reply, response_error_event
from slipstream_gateway.api.http import (
    ClientGone,
    ClientWatch,
    Receive,
    RequestHeaders,
    Scope,
    Send,
    carrier_of,
    chosen_headers,
    read_body,
    read_headers,
    send_error,
    send_reply,
)
from slipstream_gateway.api.request import BodyParser, RequestOverrides, deadline_of
from slipstream_gateway.request.call import Call, Context
from slipstream_gateway.request.causes import rejection
from slipstream_gateway.request.deadlines import client_late
from slipstream_gateway.request.dispatch import Dispatcher
from slipstream_gateway.request.outcome import Recorder
from slipstream_gateway.upstreams.base import Piece
from slipstream_gateway.upstreams.responses_wire import made_ids, next_sequence_number

ERROR_SEND_TIMEOUT_S = 1.0
SEND_TIMEOUT_S = 60.0  # for a client that reads nothing at all: a slow one takes a block well within it
_log = logging.getLogger(__name__)
_JSON = (b"content-type", b"application/json")
_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_RESUMABLE = ((b"x-slipstream-resumable", b"false"), (b"x-slipstream-resumable", b"true"))


class GenerateEndpoint:
    """One of the three endpoints, as a plain ASGI application.

    Requests without a valid key are refused before their body is read.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        parse: BodyParser,
        recorders: Sequence[Recorder],
        *,
        max_body_bytes: int,
        access: AccessControl = OPEN_ACCESS,
        forwarded: Sequence[str] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._parse = parse
        self._recorders = recorders
        self._max_body_bytes = max_body_bytes
        self._access = access
        self._forwarded = frozenset(name.encode() for name in forwarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = read_headers(scope)
        extra: Headers = [(b"x-request-id", headers.request_id.encode())]
        watch = ClientWatch(scope)
        try:
            principal = self._access.authenticate(headers.authorization)
            context = self._context(scope, headers, principal)
            with self._access.arriving(principal):
                body = await read_body(headers, receive, self._max_body_bytes)
            request = await self._parse(body, overrides_of(headers), principal.key_id)
            self._access.authorize(principal, request)
            lease = await self._access.admit(principal, request)
        except SlipstreamError as exc:
            for recorder in self._recorders:
                recorder.rejected(rejection(exc))
            await send_error(send, error_reply(exc), extra)
            return
        except ClientGone:
            return
        except asyncio.CancelledError:
            if not watch.is_gone:
                await _Reply(send, extra, watch).fail(shutting_down())
            return
        extra += lease.headers
        if context.carrier is not None:
            context.carrier.announce(extra)
        await self._run(request, context, lease, _Reply(send, extra, watch, lease if lease.may_name_state else None))

    def _context(self, scope: Scope, headers: RequestHeaders, principal: Principal) -> Context:
        """Request metadata without the body. A key of ours never goes to upstreams."""
        return Context(
            headers.request_id,
            headers.authorization if self._access.is_open else None,
            headers.traceparent,
            principal.caller,
            deadline_of(headers.request_timeout, now_s=time.monotonic()),
            chosen_headers(scope, self._forwarded) if self._forwarded else (),
            carrier_of(scope),
        )

    async def _run(self, request: GenerationRequest, context: Context, lease: Lease, reply: _Reply) -> None:
        call = self._dispatcher.call(request, context)
        client_waited = True
        try:
            await self._dispatcher.dispatch(call, reply)
        except SlipstreamError as exc:
            client_waited = not isinstance(exc, DeadlineExceeded)  # the client set the deadline
            await reply.fail(exc)
        except asyncio.CancelledError:
            client_waited = not reply.watch.is_gone
            if client_waited:
                await reply.fail(shutting_down())
        except Exception as exc:  # the task's top: an error of ours must not break the protocol
            _log.exception("request %s failed", context.request_id)
            await reply.fail(exc)
        finally:
            reply.watch.close()
            lease.settle(*bill_of(call, client_waited=client_waited))


def overrides_of(headers: RequestHeaders) -> RequestOverrides:
    """What the client asks of the gateway itself."""
    return RequestOverrides(headers.mode, headers.draft_length, headers.learn, headers.capture)


def shutting_down() -> UpstreamUnavailable:
    """What a request gets that the end of the gateway cuts short."""
    return UpstreamUnavailable("The gateway is shutting down.")


class _Reply:
    """The bytes of one answer to the client: how far they were sent, and how to end them. `owner` notes the ids of a
    response before the client can use them."""

    def __init__(self, send: Send, extra: Headers, watch: ClientWatch, owner: Lease | None = None) -> None:
        self.watch = watch
        self._send = send
        self._extra = extra
        self._owner = owner
        self._started = False
        self._streaming = False
        self._is_response = False
        self._last = b""

    async def send(self, call: Call, piece: Piece) -> None:
        if self._owner is not None and call.request.endpoint is Endpoint.RESPONSES:
            await self._note_owner(self._owner, call, piece.data)
        if not call.request.stream:
            self._started = True
            with call.timer.waiting(SEND_TIMEOUT_S, "its answer", client_late):
                await send_reply(self._send, 200, [_JSON, *self._headers(call)], piece.data)
            return
        self._last = piece.data
        if not self._streaming:
            await self._begin_stream(call)
        if piece.data:
            with call.timer.waiting(SEND_TIMEOUT_S, "a chunk", client_late):
                await self._send({"type": "http.response.body", "body": piece.data, "more_body": True})

    async def end(self, call: Call) -> None:
        if call.request.stream:
            if not self._streaming:
                await self._begin_stream(call)
            with call.timer.waiting(SEND_TIMEOUT_S, "the stream's end", client_late):
                await self._send({"type": "http.response.body", "body": b""})
        self.watch.close()
        await asyncio.sleep(0)  # the event loop sends the answer before it is recorded

    async def fail(self, error: Exception) -> None:
        """An error as a whole answer, or as the last event of a stream that has begun."""
        if self._started and not self._streaming:
            return  # a body cut short: the server closes the connection, which says so
        with contextlib.suppress(TimeoutError):  # a client that does not read does not get them
            async with asyncio.timeout(ERROR_SEND_TIMEOUT_S):
                if self._streaming:
                    await self._send({"type": "http.response.body", "body": self._error_event(error)})
                else:
                    await send_error(self._send, error_reply(error), self._extra)

    def _error_event(self, error: Exception) -> bytes:
        if not self._is_response:
            return error_event(error)
        return response_error_event(error, next_sequence_number(self._last))

    async def _begin_stream(self, call: Call) -> None:
        self._started = self._streaming = True
        self._is_response = call.request.endpoint is Endpoint.RESPONSES
        head = [*_STREAM, *self._headers(call), _RESUMABLE[call.journal is not None]]
        with call.timer.waiting(SEND_TIMEOUT_S, "the stream's head", client_late):
            await self._send({"type": "http.response.start", "status": 200, "headers": head})

    def _headers(self, call: Call) -> Headers:
        return self._extra if call.decision is None else [*self._extra, *decision_headers(call.decision)]

    async def _note_owner(self, owner: Lease, call: Call, data: bytes) -> None:
        if made := made_ids(data, stream=call.request.stream):
            await owner.own(made)


@lru_cache(maxsize=4096)
def _decision_headers(arm: str, request_class: str, reason: str, draft_length: int) -> Headers:
    return [
        (b"x-slipstream-arm", arm.encode()),
        (b"x-slipstream-class", request_class.encode()),
        (b"x-slipstream-reason", reason.encode()),
        (b"x-slipstream-draft-length", b"%d" % draft_length),
    ]


def decision_headers(decision: Decision) -> Headers:
    """The decision as response headers, not to be changed: all but the saving come from closed sets and are kept."""
    headers = _decision_headers(decision.arm, decision.request_class, decision.reason, decision.draft_length)
    if decision.revision:
        headers = [*headers, (b"x-slipstream-revision", decision.revision.encode())]
    if decision.saving_s is None:
        return headers
    return [*headers, (b"x-slipstream-saving-ms", b"%.1f" % (1e3 * decision.saving_s))]
