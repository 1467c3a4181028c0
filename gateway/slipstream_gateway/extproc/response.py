"""The response to a request that Envoy carries to its server."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

from slipstream_gateway.api.errors import Headers
from slipstream_gateway.api.http import Message
from slipstream_gateway.extproc.messages import BodySendMode, CommonResponse
from slipstream_gateway.extproc.replies import (
    Messages,
    answer_to,
    echo,
    header_value,
    immediate,
    mutation_of,
    send_pieces,
)

_DRAIN_S = 0.5
_STATUS = re.compile(r"[1-5][0-9][0-9]")
_UNCHANGED = answer_to("response_body", CommonResponse())
_EVENT_STREAM = "text/event-stream"


class Response:
    """The response to a carried request; `CarriedResponse` for the upstream, and the sender to the client.

    A response with another status than 200 passes unchanged, so that its body is empty here. The exception is a refusal
    of the gateway's own key (`own_key`), which the body may quote: the client gets the gateway's error instead.
    """

    def __init__(
        self,
        messages: Messages,
        read: Callable[[], Awaitable[Any]],
        head: Any,
        announced: Headers,
        *,
        is_duplex: bool,
        own_key: bool,
    ) -> None:
        self.headers = {header.key: header_value(header).decode("latin-1") for header in head.headers.headers}
        status = self.headers.get(":status", "")
        self.status = int(status) if _STATUS.fullmatch(status) else 0
        self._is_hidden = own_key and self.status in (401, 403)
        self._messages = messages
        self._read = read
        self._announced = announced
        self._is_duplex = is_duplex
        self._is_stream = self.headers.get("content-type", "").startswith(_EVENT_STREAM)
        self._is_begun = False  # Envoy has the head
        self._awaits_answer = False  # to the last part of the body
        self._ended = bool(head.end_of_stream)
        self._part = b""  # the part of the body that Envoy waits for
        self._outbox = bytearray()

    @property
    def content(self) -> Response:
        return self

    async def begin(self) -> None:
        """Answers the head, unless the answer can wait until the body is known."""
        if self._is_hidden:
            return
        if self.status != 200 and self._is_duplex:
            await self._send_head(mutation_of(self._announced), None)
            await echo(self._messages)
        elif self.status != 200:
            await self._send_head(mutation_of(self._announced), BodySendMode.NONE)
        elif not self._is_duplex:
            mode = None if self._is_stream else BodySendMode.BUFFERED
            await self._send_head(mutation_of(self._announced), mode)

    async def readany(self) -> bytes:
        if self.status != 200:
            return b""
        while not self._ended:
            await self._flush()
            message = await self._read()
            self._awaits_answer, self._ended = True, _is_last(message)
            self._part = message.response_body.body
            if self._part:
                return self._part
        return b""

    def at_eof(self) -> bool:
        return self._ended

    def close(self) -> None:
        """Nothing to do: the connection is Envoy's."""

    release = close

    async def send(self, start: Message, body: bytes, *, is_last: bool) -> None:
        """Passes a part of the body on."""
        if self.status != 200 and not self._is_hidden:
            return  # passes unchanged
        if not self._is_begun or (start["status"] != 200 and not self._is_stream):
            if start["status"] != 200:
                self._outbox += body
                if is_last:
                    await self._messages.write(immediate(start["status"], start["headers"], bytes(self._outbox)))
                return
            await self._send_head(mutation_of(self._announced), None)
        self._outbox += body
        if not is_last:
            if self._is_duplex:
                await self._flush()
            return
        if self._is_duplex and not self._ended:
            await self._drain()
        await self._flush(is_last=True)
        self._ended = True

    async def _drain(self) -> None:
        """Waits for the end of the server's response, which Envoy expects before that of the client's; not for long,
        because a server may go on after the gateway has given up on it."""
        deadline_s = asyncio.get_running_loop().time() + _DRAIN_S
        with contextlib.suppress(TimeoutError):
            while not self._ended:
                await self._flush()  # must not be cut off in the middle of a message
                async with asyncio.timeout_at(deadline_s):
                    message = await self._read()
                self._ended = message is None or _is_last(message)

    async def _flush(self, *, is_last: bool = False) -> None:
        """Answers the last part of the body with what is to be sent."""
        if self._is_duplex:
            if self._outbox or is_last:
                body, self._outbox = bytes(self._outbox), bytearray()
                await send_pieces(self._messages, "response_body", body, is_last=is_last)
            return
        if not self._awaits_answer:
            return
        self._awaits_answer = False
        if self._outbox == self._part:
            self._outbox.clear()
            await self._messages.write(_UNCHANGED)
            return
        common = CommonResponse()
        if self._outbox:
            common.body_mutation.body = bytes(self._outbox)
            self._outbox.clear()
        else:
            common.body_mutation.clear_body = True
        await self._messages.write(answer_to("response_body", common))

    async def _send_head(self, changes: Any, mode: BodySendMode | None) -> None:
        self._is_begun = True
        if self.status == 200 and mode is not BodySendMode.NONE:
            changes.remove_headers.append("content-length")
        answer = answer_to("response_headers", CommonResponse(header_mutation=changes))
        if mode is not None:
            answer.mode_override.response_body_mode = mode
        await self._messages.write(answer)


def _is_last(message: Any) -> bool:
    """Whether the body of the response ends with `message`, which may be its trailers."""
    return bool(message.response_body.end_of_stream) or not message.HasField("response_body")
