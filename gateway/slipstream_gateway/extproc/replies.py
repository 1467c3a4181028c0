"""The answers to Envoy's messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

from slipstream_gateway.api.errors import Headers
from slipstream_gateway.extproc.messages import (
    OVERWRITE,
    CommonResponse,
    HeaderMutation,
    HeaderValueOption,
    ProcessingResponse,
)

PIECE_BYTES = 1024 * 1024


class Messages(Protocol):
    """The gRPC stream from Envoy."""

    async def read(self) -> Any:
        """The next message; None once Envoy has ended the stream."""
        ...

    async def write(self, message: Any) -> None: ...


async def echo(messages: Messages) -> None:
    """Sends everything back as it comes. In full duplex Envoy keeps no part of a body that it has sent, and a response
    may begin before Envoy learns that the stream has ended."""
    while (message := await messages.read()) is not None:
        kind = message.WhichOneof("request") or ""
        if kind.endswith("_body"):
            part = getattr(message, kind)
            await send_pieces(messages, kind, part.body, is_last=part.end_of_stream)
        elif kind.endswith("_headers"):
            await messages.write(answer_to(kind, CommonResponse()))
        elif kind:  # else a message of a later version
            answer = ProcessingResponse()
            getattr(answer, kind).SetInParent()
            await messages.write(answer)


def answer_to(kind: str, response: Any) -> Any:
    """The answer to a message of `kind`, which Envoy treats as `response` says."""
    answer = ProcessingResponse()
    getattr(answer, kind).response.CopyFrom(response)
    return answer


def immediate(status: int, headers: Headers, body: bytes) -> Any:
    """An answer to the client in place of any other."""
    answer = ProcessingResponse()
    answer.immediate_response.status.code = status
    answer.immediate_response.headers.CopyFrom(mutation_of(headers))
    answer.immediate_response.body = body
    answer.immediate_response.details = "slipstream"
    return answer


async def send_pieces(messages: Messages, kind: str, body: bytes, *, is_last: bool) -> None:
    """Sends a part of a body in full duplex."""
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        common = CommonResponse()
        common.body_mutation.streamed_response.body = body[start : start + PIECE_BYTES]
        common.body_mutation.streamed_response.end_of_stream = is_last and start + PIECE_BYTES >= len(body)
        await messages.write(answer_to(kind, common))


def mutation(headers: Mapping[str, str]) -> Any:
    """Headers to add or replace."""
    return HeaderMutation(set_headers=[header_option(name, value.encode("latin-1")) for name, value in headers.items()])


def mutation_of(headers: Headers) -> Any:
    """The headers of an ASGI message."""
    kept = [(name, value) for name, value in headers if name != b"content-length"]  # Envoy counts itself
    return HeaderMutation(set_headers=[header_option(name.decode(), value) for name, value in kept])


@lru_cache(maxsize=4096)
def metadata_of(entries: tuple[tuple[str, str, str], ...]) -> Any:
    """Dynamic metadata of namespace, key and value, not to be changed: entries come from closed sets and are kept."""
    found: dict[str, dict[str, str]] = {}
    for namespace, key, value in entries:
        found.setdefault(namespace, {})[key] = value
    answer = ProcessingResponse()
    answer.dynamic_metadata.update(found)
    return answer.dynamic_metadata


def header_option(name: str, value: bytes) -> Any:
    """A header to add or replace."""
    return HeaderValueOption(header={"key": name, "raw_value": value}, append_action=OVERWRITE)


def header_value(header: Any) -> bytes:
    """Envoy writes `raw_value`; other data planes may write `value`."""
    return bytes(header.raw_value or header.value)
