"""The form of requests and responses in the tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slipstream_engine.errors import RequestError

HALTED = "halted: the server is shutting down"
UNFINISHED = "internal: the application ended its answer early"
_END = b"\n"


class PipedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the application. `path` may have a query."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a response. `last` is False if more parts follow. The last part of an incomplete response has an
    `error`, which begins with a stable code."""

    data: bytes
    last: bool
    error: str | None = None


class _RequestHead(msgspec.Struct, frozen=True):
    method: str
    path: str
    headers: Mapping[str, str] = {}


class _ResponseHead(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]


def read_request(data: bytes) -> PipedRequest:
    """The request in a tensor. Raises `RequestError`."""
    head, _, body = data.partition(_END)
    try:
        found = msgspec.json.decode(head, type=_RequestHead)
        "".join([*found.headers, *found.headers.values()]).encode("latin-1")  # HTTP's character set
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise RequestError(f'request does not begin with a line {{"method": …, "path": …}}: {exc}') from exc
    return PipedRequest(method=found.method, path=found.path, headers=found.headers, body=body)


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The beginning of a response."""
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return msgspec.json.encode(_ResponseHead(status, named)) + _END


def merge_pieces(pieces: Sequence[Piece]) -> Piece:
    """Combine `pieces`, in order and not empty, into one."""
    return Piece(data=b"".join([piece.data for piece in pieces]), last=pieces[-1].last, error=pieces[-1].error)
