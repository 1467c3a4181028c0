"""One HTTP request that Envoy processes: as ASGI's `receive` and `send`, and as the carrier of the request.

Envoy sends the head and the body of the request, waits for the changed ones, and then sends those of the response. In
the modes STREAMED and BUFFERED it waits for exactly one answer to each message. In FULL_DUPLEX_STREAMED the changed
body is sent independently of the messages.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from slipstream_core.errors import InvalidRequest, UpstreamUnavailable
from slipstream_core.manifest.inference_pool import MODEL_HEADER
from slipstream_core.types import Decision

from slipstream_gateway.api.errors import Headers
from slipstream_gateway.api.generate import decision_headers
from slipstream_gateway.api.http import BODY_TIMEOUT_S, ClientGone, Message, Scope, disconnected
from slipstream_gateway.extproc.messages import BodySendMode, CommonResponse, HeaderMutation
from slipstream_gateway.extproc.replies import (
    Messages,
    answer_to,
    echo,
    header_option,
    immediate,
    metadata_of,
    mutation,
    send_pieces,
)
from slipstream_gateway.extproc.response import Response
from slipstream_gateway.upstreams.private_headers import PRIVATE

CHOSEN = "x-gateway-destination-endpoint"
"""The header, and the key of the metadata `envoy.lb`, by which endpoint pickers name a server (Gateway API Inference
Extension, 004-endpoint-picker-protocol)."""
HAND_OVER = "hand_over"
# Of the client's headers. The response must be readable, and a key of the gateway's never goes to upstreams.
_REMOVED = ("accept-encoding", "authorization")
_REMOVED_WITH_KEYS = (*_REMOVED, *sorted(set(PRIVATE) - set(_REMOVED)))
_DUPLEX = BodySendMode.FULL_DUPLEX_STREAMED


class Exchange:
    """The state of one request. `authorization` is the client's, `request_mode` and `response_mode` are Envoy's.
    `has_keys`: the gateway has keys, so a client's private headers do not reach its server. `model` is the model that
    the body names; Envoy gets it as a header, for routes.

    The methods are called in this order: `read_body`, then either `go_on`, which leaves the rest to Envoy, or those of
    ASGI and of `Carrier`. `go_on` and `send` may also be the first.
    """

    def __init__(
        self,
        messages: Messages,
        scope: Scope,
        *,
        authorization: str | None,
        has_body: bool,
        request_mode: int,
        response_mode: int,
        has_keys: bool,
    ) -> None:
        self._authorization = authorization
        self._removed = _REMOVED_WITH_KEYS if has_keys else _REMOVED
        self._messages = messages
        self._scope = scope
        self._has_body = has_body
        self._request_mode = request_mode
        self._response_mode = response_mode
        self._body = b""
        self._is_read = not has_body
        self._is_gone = False
        self._announced: Headers = []
        self._decision: Decision | None = None
        self.model = ""
        self._start: Message | None = None
        self._own = bytearray()  # an answer of the gateway itself
        self._is_sent = self._is_over = False
        self._response: Response | None = None

    async def read_body(self, limit_bytes: int) -> bytes:
        """The request's body, or its beginning if it has more than `limit_bytes`. Raises `ClientGone`, and
        `InvalidRequest` if it does not arrive in time."""
        if not self._has_body:
            return b""
        if self._request_mode != _DUPLEX:
            await self._messages.write(answer_to("request_headers", CommonResponse()))
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                self._body = await self._read_body(limit_bytes)
        except TimeoutError as exc:
            raise InvalidRequest(f"The request body did not arrive within {BODY_TIMEOUT_S:g} s.") from exc
        self._is_read = True
        return self._body

    async def _read_body(self, limit_bytes: int) -> bytes:
        parts, total = [], 0
        while total <= limit_bytes:
            message = await self._messages.read()
            if message is None:
                raise ClientGone
            if not message.HasField("request_body"):
                break  # trailers
            parts.append(message.request_body.body)
            total += len(parts[-1])
            if message.request_body.end_of_stream:
                break
        return b"".join(parts)

    async def go_on(self, *, hand_over: bool) -> None:
        """Leaves the request to Envoy unchanged. `hand_over` asks it to send the request to the gateway itself."""
        metadata = metadata_of((("slipstream", HAND_OVER, "gateway"),)) if hand_over else None
        await self._send_request(HeaderMutation(), self._body, metadata)
        if _DUPLEX in (self._request_mode, self._response_mode):
            await echo(self._messages)

    # ASGI

    async def receive(self) -> Message:
        """The whole body, unless the client is gone."""
        if self._is_gone:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Passes a part of the answer to the client; Envoy has the head of a carried response already."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, body, is_last = self._start, message.get("body", b""), not message.get("more_body", False)
        if start is None:
            raise RuntimeError("the body of an answer was sent before its head")
        self._is_over = is_last
        if self._response is not None:
            await self._response.send(start, body, is_last=is_last)
            return
        self._own += body
        if is_last and not self._is_sent:
            await self._messages.write(immediate(start["status"], start["headers"], bytes(self._own)))

    def lose(self) -> None:
        """Envoy has ended the stream: the client is gone, or the connection to the server broke, or Envoy had the last
        part of the answer before its sender noticed."""
        if not self._is_over:
            self._is_gone = True
            disconnected(self._scope)

    # Carrier

    def announce(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._announced += headers

    def decided(self, decision: Decision) -> None:
        self._decision = decision

    async def post(self, endpoint: str, headers: Mapping[str, str], body: bytes) -> Response:
        if self._is_sent:
            raise UpstreamUnavailable("Envoy sends a request to one server only.")
        decision = self._explained()
        chosen = endpoint if _is_address(endpoint) else ""
        changes = mutation({**headers, **({CHOSEN: chosen} if chosen else {})})
        changes.set_headers.extend(header_option(name.decode(), value) for name, value in decision)
        if self.model.isascii() and self.model.isprintable():
            changes.set_headers.append(header_option(MODEL_HEADER, self.model.encode()))
        else:  # that of a client must not choose the route
            changes.remove_headers.append(MODEL_HEADER)
        changes.remove_headers.extend(name for name in self._removed if name not in headers)
        await self._send_request(changes, body, self._metadata(chosen))
        head = (await self._next()).response_headers
        self._response = Response(
            self._messages,
            self._next,
            head,
            [*self._announced, *decision],
            is_duplex=self._response_mode == _DUPLEX,
            own_key=headers.get("authorization") not in (None, self._authorization),
        )
        await self._response.begin()
        return self._response

    def _explained(self) -> Headers:
        return [] if self._decision is None else decision_headers(self._decision)

    def _metadata(self, chosen: str) -> Any:
        """The decision for access logs and routes, and the chosen server, if Envoy can connect to it as it is."""
        entries = [("envoy.lb", CHOSEN, chosen)] if chosen else []
        if self._decision is not None:
            decision = self._decision
            entries += [
                ("slipstream", "arm", str(decision.arm)),
                ("slipstream", "class", decision.request_class),
                ("slipstream", "reason", str(decision.reason)),
                ("slipstream", "draft_length", str(decision.draft_length)),
            ]
        return metadata_of(tuple(entries))

    async def _send_request(self, changes: Any, body: bytes, metadata: Any) -> None:
        self._is_sent = True
        if body:
            changes.set_headers.append(header_option("content-length", b"%d" % len(body)))
        head = CommonResponse(header_mutation=changes, clear_route_cache=True)
        is_whole = self._has_body and self._is_read and self._request_mode != _DUPLEX
        if is_whole:
            head.body_mutation.body = body
        answer = answer_to("request_body" if is_whole else "request_headers", head)
        if metadata is not None:
            answer.dynamic_metadata.CopyFrom(metadata)
        await self._messages.write(answer)
        if self._has_body and self._is_read and not is_whole:
            await send_pieces(self._messages, "request_body", body, is_last=True)

    async def _next(self) -> Any:
        """The next message; None if the client is gone and has the whole answer. If it lacks a part this never returns,
        and the endpoint's `ClientWatch` cancels the task."""
        message = await self._messages.read()
        if message is None and not self._is_over:
            self.lose()
            await asyncio.get_running_loop().create_future()
        return message


@lru_cache(maxsize=1024)
def _is_address(endpoint: str) -> bool:
    """Whether Envoy can connect to `endpoint` as it is: it does not look up names here."""
    try:
        ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return True
