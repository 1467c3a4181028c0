"""One HTTP request that Envoy processes: as ASGI's `receive` and `send`, and as the carrier of the request.

Envoy sends the head and the body of the request, waits for the changed ones, and then sends those of the response. In
the modes STREAMED and BUFFERED it waits for exactly one answer to each message. In FULL_DUPLEX_STREAMED the changed
body is sent independently of the messages.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from slipstream_core.errors import UpstreamUnavailable
from slipstream_core.types import Decision

from slipstream_gateway.api.errors import Headers
from slipstream_gateway.api.generate import decision_headers
from slipstream_gateway.api.http import ClientGone, Message
from slipstream_gateway.extproc.messages import (
    OVERWRITE,
    BodySendMode,
    CommonResponse,
    HeaderMutation,
    HeaderValueOption,
    ProcessingResponse,
)

PIECE_BYTES = 1024 * 1024
CHOSEN = "x-gateway-destination-endpoint"
"""The header, and the key of the metadata `envoy.lb`, by which endpoint pickers name a server (Gateway API Inference
Extension, 004-endpoint-picker-protocol)."""
HAND_OVER = "hand_over"
_EVENT_STREAM = "text/event-stream"
_NOT_CARRIED = ("accept-encoding",)  # the response must be readable
_DUPLEX = BodySendMode.FULL_DUPLEX_STREAMED


class Messages(Protocol):
    """The gRPC stream from Envoy."""

    async def read(self) -> Any:
        """The next message; None once Envoy has ended the stream."""
        ...

    async def write(self, message: Any) -> None: ...


class Exchange:
    """The state of one request. `headers` are those of the request, names in lower case, with pseudo-headers.

    `request_mode` and `response_mode` are Envoy's. The methods are called in this order: `read_body`, then either
    `go_on`, which leaves the rest to Envoy, or those of ASGI and of `Carrier`. `go_on` may also be the first.
    """

    def __init__(
        self,
        messages: Messages,
        headers: Headers,
        *,
        has_body: bool,
        request_mode: int,
        response_mode: int,
    ) -> None:
        self.headers = headers
        self._messages = messages
        self._has_body = has_body
        self._request_mode = request_mode
        self._response_mode = response_mode
        self._gone = asyncio.get_running_loop().create_future()
        self._body = b""
        self._is_read = not has_body
        self._is_received = False
        self._announced: Headers = []
        self._decision: Decision | None = None
        self._start: Message | None = None
        self._own = bytearray()  # an answer of the gateway itself
        self._is_sent = False
        self._response: Response | None = None

    async def read_body(self, limit_bytes: int) -> bytes:
        """The request's body, or its beginning if it has more than `limit_bytes`. Raises `ClientGone`."""
        if not self._has_body:
            return b""
        if self._request_mode != _DUPLEX:
            await self._messages.write(_answer("request_headers", CommonResponse()))
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
        self._body = b"".join(parts)
        self._is_read = True
        return self._body

    async def go_on(self, *, hand_over: bool) -> None:
        """Leaves the request to Envoy unchanged. `hand_over` asks it to send the request to the gateway itself."""
        metadata = {"slipstream": {HAND_OVER: "gateway"}} if hand_over else {}
        await self._send_request(HeaderMutation(), self._body, metadata)
        if _DUPLEX in (self._request_mode, self._response_mode):
            await _echo(self._messages)

    # ASGI

    async def receive(self) -> Message:
        """The whole body, then the client's disconnect."""
        if not self._is_received:
            self._is_received = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Passes a part of the answer to the client; Envoy has the head of a carried response already."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        if self._response is not None:
            await self._response.send(self._start or message, body, is_last=is_last)
            return
        self._own += body
        if is_last and not self._is_sent and self._start is not None:
            await self._messages.write(_immediate(self._start["status"], self._start["headers"], bytes(self._own)))

    def lose(self) -> None:
        """Envoy has ended the stream: the client is gone, or the connection to the server broke."""
        if not self._gone.done():
            self._gone.set_result(None)

    # Carrier

    def announce(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._announced += headers

    def decided(self, decision: Decision) -> None:
        self._decision = decision

    async def post(self, endpoint: str, headers: Mapping[str, str], body: bytes) -> Response:
        if self._is_sent:
            raise UpstreamUnavailable("Envoy sends a request to one server only.")
        decision = self._explained()
        named = {name.decode(): value.decode("latin-1") for name, value in decision}
        metadata: dict[str, dict[str, str]] = {"slipstream": _metadata(named)}
        if _is_address(endpoint):
            named[CHOSEN] = endpoint
            metadata["envoy.lb"] = {CHOSEN: endpoint}
        mutation = _mutation({**named, **headers})
        mutation.remove_headers.extend(_NOT_CARRIED)
        if "authorization" not in headers:
            mutation.remove_headers.append("authorization")  # a key of the gateway's never goes to upstreams
        await self._send_request(mutation, body, metadata)
        head = (await self._next()).response_headers
        self._response = Response(
            self._messages, self._next, head, [*self._announced, *decision], is_duplex=self._response_mode == _DUPLEX
        )
        await self._response.begin()
        return self._response

    def _explained(self) -> Headers:
        return [] if self._decision is None else decision_headers(self._decision)

    async def _send_request(self, mutation: Any, body: bytes, metadata: Mapping[str, Mapping[str, str]]) -> None:
        self._is_sent = True
        if body:
            mutation.set_headers.append(_header("content-length", b"%d" % len(body)))
        head = CommonResponse(header_mutation=mutation, clear_route_cache=True)
        is_whole = self._has_body and self._is_read and self._request_mode != _DUPLEX
        if is_whole:
            head.body_mutation.body = body
        answer = _answer("request_body" if is_whole else "request_headers", head)
        answer.dynamic_metadata.update(metadata)
        await self._messages.write(answer)
        if self._has_body and self._is_read and not is_whole:
            await _send_pieces(self._messages, "request_body", body, is_last=True)

    async def _next(self) -> Any:
        """The next message. At the end of the stream the client is gone: this never returns, and the task is cancelled
        by whoever watches the client."""
        message = await self._messages.read()
        if message is None:
            self.lose()
            await asyncio.get_running_loop().create_future()
        return message


class Response:
    """The response to a carried request; `CarriedResponse` for the upstream, and the sender to the client.

    A response with another status than 200 passes unchanged, so that its body is empty here.
    """

    def __init__(self, messages: Messages, read: Any, head: Any, announced: Headers, *, is_duplex: bool) -> None:
        self.headers = {header.key: _value(header).decode("latin-1") for header in head.headers.headers}
        self.status = int(self.headers.get(":status", "0"))
        self._messages = messages
        self._read = read
        self._announced = announced
        self._is_duplex = is_duplex
        self._is_stream = self.headers.get("content-type", "").startswith(_EVENT_STREAM)
        self._is_begun = False  # Envoy has the head
        self._awaits_answer = False  # to the last part of the body
        self._ended = bool(head.end_of_stream)
        self._outbox = bytearray()

    @property
    def content(self) -> Response:
        return self

    async def begin(self) -> None:
        """Answers the head, unless the answer can wait until the body is known."""
        if self.status != 200 and self._is_duplex:
            await self._send_head(_mutation_of(self._announced), None)
            await _echo(self._messages)
        elif self.status != 200:
            await self._send_head(_mutation_of(self._announced), BodySendMode.NONE)
        elif not self._is_duplex:
            mode = None if self._is_stream else BodySendMode.BUFFERED
            await self._send_head(_mutation_of(self._announced), mode)

    async def readany(self) -> bytes:
        if self.status != 200:
            return b""
        while not self._ended:
            await self._flush()
            message = await self._read()
            self._awaits_answer, self._ended = True, _is_last(message)
            if message.response_body.body:
                return bytes(message.response_body.body)
        return b""

    def at_eof(self) -> bool:
        return self._ended

    def close(self) -> None:
        """Nothing to do: the connection is Envoy's."""

    release = close

    async def send(self, start: Message, body: bytes, *, is_last: bool) -> None:
        """Passes a part of the body on."""
        if self.status != 200:
            return  # passes unchanged
        if not self._is_begun or (start["status"] != 200 and not self._is_stream):
            if start["status"] != 200:
                self._outbox += body
                if is_last:
                    await self._messages.write(_immediate(start["status"], start["headers"], bytes(self._outbox)))
                return
            await self._send_head(_mutation_of(self._announced), None)
        self._outbox += body
        if is_last or self._is_duplex:
            await self._flush(is_last=is_last)

    async def _flush(self, *, is_last: bool = False) -> None:
        """Answers the last part of the body with what is to be sent."""
        if self._is_duplex:
            if self._outbox or is_last:
                body, self._outbox = bytes(self._outbox), bytearray()
                await _send_pieces(self._messages, "response_body", body, is_last=is_last)
            return
        if not self._awaits_answer:
            return
        common = CommonResponse()
        if self._outbox:
            common.body_mutation.body = bytes(self._outbox)
            self._outbox = bytearray()
        else:
            common.body_mutation.clear_body = True
        self._awaits_answer = False
        await self._messages.write(_answer("response_body", common))

    async def _send_head(self, mutation: Any, mode: BodySendMode | None) -> None:
        self._is_begun = True
        if self.status == 200 and mode is not BodySendMode.NONE:
            mutation.remove_headers.append("content-length")
        answer = _answer("response_headers", CommonResponse(header_mutation=mutation))
        if mode is not None:
            answer.mode_override.response_body_mode = mode
        await self._messages.write(answer)


async def _echo(messages: Messages) -> None:
    """Sends everything back as it comes. In full duplex Envoy keeps no part of a body that it has sent, and a response
    may begin before Envoy learns that the stream has ended."""
    while (message := await messages.read()) is not None:
        kind = message.WhichOneof("request")
        if kind.endswith("_body"):
            part = getattr(message, kind)
            await _send_pieces(messages, kind, part.body, is_last=part.end_of_stream)
        elif kind.endswith("_headers"):
            await messages.write(_answer(kind, CommonResponse()))
        else:
            answer = ProcessingResponse()
            getattr(answer, kind).SetInParent()
            await messages.write(answer)


def _is_last(message: Any) -> bool:
    """Whether the body of the response ends with `message`, which may be its trailers."""
    return bool(message.response_body.end_of_stream) or not message.HasField("response_body")


def _answer(kind: str, response: Any) -> Any:
    answer = ProcessingResponse()
    getattr(answer, kind).response.CopyFrom(response)
    return answer


def _immediate(status: int, headers: Headers, body: bytes) -> Any:
    answer = ProcessingResponse()
    answer.immediate_response.status.code = status
    answer.immediate_response.headers.CopyFrom(_mutation_of(headers))
    answer.immediate_response.body = body
    answer.immediate_response.details = "slipstream"
    return answer


async def _send_pieces(messages: Messages, kind: str, body: bytes, *, is_last: bool) -> None:
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        common = CommonResponse()
        common.body_mutation.streamed_response.body = body[start : start + PIECE_BYTES]
        common.body_mutation.streamed_response.end_of_stream = is_last and start + PIECE_BYTES >= len(body)
        await messages.write(_answer(kind, common))


def _metadata(named: Mapping[str, str]) -> dict[str, str]:
    """The decision for access logs and routes: `arm`, `class`, `reason`, `draft_length`, `saving_ms`."""
    return {name.removeprefix("x-slipstream-").replace("-", "_"): value for name, value in named.items()}


def _is_address(endpoint: str) -> bool:
    """Whether Envoy can connect to `endpoint` as it is: it does not look up names here."""
    try:
        ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return True


def _mutation(headers: Mapping[str, str]) -> Any:
    return HeaderMutation(set_headers=[_header(name, value.encode("latin-1")) for name, value in headers.items()])


def _mutation_of(headers: Headers) -> Any:
    kept = [(name, value) for name, value in headers if name != b"content-length"]  # Envoy counts itself
    return HeaderMutation(set_headers=[_header(name.decode(), value) for name, value in kept])


def _header(name: str, value: bytes) -> Any:
    return HeaderValueOption(header={"key": name, "raw_value": value}, append_action=OVERWRITE)


def _value(header: Any) -> bytes:
    """Envoy writes `raw_value`; other data planes may write `value`."""
    return bytes(header.raw_value) or header.value.encode("latin-1", "replace")
