"""The gRPC service that Envoy's `ext_proc` filter calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from slipstream_core.errors import InvalidRequest, shorten

from slipstream_gateway.api.errors import ErrorReply, error_reply, http_error_body
from slipstream_gateway.api.http import ClientGone, Scope, read_headers, send_error, trim_headers
from slipstream_gateway.api.port_router import Asgi
from slipstream_gateway.extproc.exchange import Exchange
from slipstream_gateway.extproc.messages import METHOD, BodySendMode, ProcessingRequest
from slipstream_gateway.extproc.replies import header_value
from slipstream_gateway.grpc_server.bounds import Bounds
from slipstream_gateway.grpc_server.call import Call
from slipstream_gateway.grpc_server.server import serving as grpc_serving
from slipstream_gateway.grpc_server.status import CallFailed, Status
from slipstream_gateway.upstreams.carrier import CARRIER

_SPARE_BYTES = 64 * 1024 * 1024  # for bodies above the limit, which get an answer, and for headers
_FIRST_MESSAGE_S = 10.0  # Envoy sends it with the head of the stream
_READABLE = (BodySendMode.BUFFERED, BodySendMode.FULL_DUPLEX_STREAMED)
_PROCESSED = (BodySendMode.STREAMED, BodySendMode.BUFFERED, BodySendMode.FULL_DUPLEX_STREAMED)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Bytes that are in no value of a header (RFC 9110, 5.5). A mutation may repeat a value."""
_JSON = (b"content-type", b"application/json")
_log = logging.getLogger(__name__)


class _Model(msgspec.Struct):
    model: str = ""


_decode_model = msgspec.json.Decoder(_Model).decode


class ExternalProcessor:
    """Runs the endpoints for requests that Envoy processes.

    `endpoints` are the applications by path. `carried` says whether the model's servers speak HTTP, so that Envoy can
    carry a request to them: False for those that only the gateway itself can reach, None for an unknown model.

    What the endpoints do not know passes untouched, because Envoy serves others as well. With `has_keys` it is refused:
    otherwise the servers could be reached without a key, by another path or by their own name for a model.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Asgi],
        carried: Callable[[str], bool | None],
        *,
        max_body_bytes: int,
        has_keys: bool = False,
    ) -> None:
        self._endpoints = endpoints
        self._carried = carried
        self._max_body_bytes = max_body_bytes
        self._has_keys = has_keys
        self._warned: set[str] = set()

    async def process(self, call: Call) -> None:
        """One request, from its head to the end of its response. Where the filter has nothing to do, it ends the
        stream, and Envoy goes on without it."""
        messages = _Messages(call)
        try:
            async with asyncio.timeout(_FIRST_MESSAGE_S):
                first = await messages.read()
        except TimeoutError:
            raise CallFailed(Status.DEADLINE_EXCEEDED, "a stream began without a message") from None
        if first is None or not (first.HasField("request_headers") or self._has_keys):
            return
        scope = _scope(first.request_headers)
        exchange = Exchange(
            messages,
            scope,
            authorization=read_headers(scope).authorization,
            has_body=not first.request_headers.end_of_stream,
            request_mode=_request_mode(first),
            response_mode=_response_mode(first),
            has_keys=self._has_keys,
        )
        if not self._is_usable(first):
            if self._has_keys:
                await _refuse(exchange, 503, "The gateway's filter cannot check this request.")
            return
        endpoint = self._endpoints.get(scope["path"]) if scope["method"] == "POST" else None
        if endpoint is None and self._has_keys:
            await _refuse(exchange, 404, f"Invalid URL ({scope['method']} {shorten(scope['path'])})")
            return
        if endpoint is None:
            await exchange.go_on(hand_over=False)
            return
        if any(_CONTROL.search(value) for _, value in scope["headers"]):
            await _refuse(exchange, 400, "A header has a control character in its value.")
            return
        try:
            body = await exchange.read_body(self._max_body_bytes)
        except ClientGone:
            return
        except InvalidRequest as exc:  # to end the stream would let the request pass
            await send_error(exchange.send, error_reply(exc), [])
            return
        exchange.model = _model_of(body)
        carried = self._carried_by(exchange.model)
        if not carried:
            await exchange.go_on(hand_over=carried is False)
            return
        scope["extensions"] = {CARRIER: exchange}
        await _watched(exchange, endpoint(scope, exchange.receive, exchange.send))

    def _carried_by(self, model: str) -> bool | None:
        """As `carried`. A body without a readable model is answered by its endpoint, which says what is wrong."""
        carried = self._carried(model) if model else True
        return True if carried is None and self._has_keys else carried

    def _is_usable(self, first: Any) -> bool:
        """Whether Envoy's filter sends what is needed; what is missing is logged once."""
        problem = ""
        if first.observability_mode:
            problem = "observability_mode is on: the filter could not change a request"
        elif _request_mode(first) not in _READABLE:
            problem = "request_body_mode must be BUFFERED or FULL_DUPLEX_STREAMED"
        elif _response_mode(first) not in _PROCESSED:
            problem = "response_body_mode must be STREAMED or FULL_DUPLEX_STREAMED"
        if problem and problem not in self._warned:
            self._warned.add(problem)
            _log.error("Envoy's filter is not usable, and its requests pass without decisions: %s", problem)
        return not problem


def _model_of(body: bytes) -> str:
    """The model that a request names; empty if there is none, or none that can be read."""
    try:
        return _decode_model(body).model or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


async def _refuse(exchange: Exchange, status: int, message: str) -> None:
    await send_error(exchange.send, ErrorReply(status, [_JSON], http_error_body(status, message)), [])


async def _watched(exchange: Exchange, answer: Any) -> None:
    """Runs `answer` to its end. When Envoy cancels the stream, the endpoint notices it as a disconnect of the client
    and records it."""
    task = asyncio.ensure_future(answer)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        exchange.lose()
        await task
        raise


@contextlib.asynccontextmanager
async def serving(
    processor: ExternalProcessor,
    address: str,
    *,
    shared: bool,
    drain_s: float,
    max_body_bytes: int,
    max_bodies_bytes: int,
) -> AsyncIterator[None]:
    """Serves `processor` on `address` (`host:port` or `unix:path`) while the context is open. `shared`: other processes
    serve the same port. On exit open streams have `drain_s` to end. Raises `OSError` if the address is not
    available."""
    bounds = Bounds(message_bytes=max_body_bytes + _SPARE_BYTES, held_bytes=max_bodies_bytes + _SPARE_BYTES)
    async with grpc_serving(
        {METHOD: processor.process},
        address,
        shared=shared,
        drain_s=drain_s,
        bounds=bounds,
    ):
        yield


class _Messages:
    """The stream of one request. Once Envoy has ended it, nothing more is read or written."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def read(self) -> Any:
        data = await self._call.read()
        if data is None:
            return None
        try:
            return ProcessingRequest.FromString(data)
        except DecodeError as exc:  # to end the stream would let the request pass
            raise CallFailed(Status.INTERNAL, "a message cannot be decoded") from exc

    async def write(self, message: Any) -> None:
        await self._call.write(message.SerializeToString())


def _request_mode(first: Any) -> int:
    """The mode of request bodies; older Envoys do not send it."""
    has_modes: bool = first.HasField("protocol_config")
    return int(first.protocol_config.request_body_mode) if has_modes else BodySendMode.BUFFERED


def _response_mode(first: Any) -> int:
    has_modes: bool = first.HasField("protocol_config")
    return int(first.protocol_config.response_body_mode) if has_modes else BodySendMode.STREAMED


def _scope(head: Any) -> Scope:
    """ASGI's scope, as far as the endpoints use it."""
    headers = [(header.key.encode(), header_value(header)) for header in head.headers.headers]
    found = {name: value.decode("latin-1") for name, value in headers if name.startswith(b":")}
    path, _, query = found.get(b":path", "").partition("?")
    scope: Scope = {
        "type": "http",
        "method": found.get(b":method", ""),
        "path": path,
        "query_string": query.encode("latin-1"),
        "headers": [header for header in headers if not header[0].startswith(b":")],
    }
    trim_headers(scope)
    return scope
