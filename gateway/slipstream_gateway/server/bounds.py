"""Bounds on the resources of a client before its request is admitted, and the responses to requests beyond them.

The checks of a head follow RFC 9112 (HTTP/1.1) and are strict if it leaves a choice: a request that two servers could
read differently is refused. uvicorn accepts these heads.
"""

from __future__ import annotations

import socket

import msgspec
from slipstream_core.errors import Overloaded
from slipstream_core.hosts import is_authority

from slipstream_gateway.api.errors import ErrorReply, error_reply, http_error_body
from slipstream_gateway.api.http import Receive, Scope, Send, send_error

SPARE_CONNECTIONS = 1024
"""Open connections beyond the running and waiting requests: idle clients, probes and metrics."""
_UNSENT_BYTES = 16 * 1024
_UNACKNOWLEDGED_MS = 120_000
Fields = list[tuple[bytes, bytes]]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one connection, except `bodies_bytes`, which all bodies of a worker share.

    A body may be slow for `body_grace_s`. After that it must arrive at `body_rate_bytes` per second (Kestrel's
    MinRequestBodyDataRate, with its values). Chunk sizes, chunk extensions and trailers may be larger than the body
    itself by `framing_bytes`. A refused client has `linger_s` to read the reason. While `unsent_bytes` wait for a
    client, no more is read for it from upstream. A client that reads nothing for `flush_s` of the data left at the end
    is disconnected. `probes` are paths that are served beyond the limit of connections, too: many clients do not mean
    that the process is unhealthy.
    """

    head_bytes: int = 64 * 1024
    head_s: float = 30.0
    url_bytes: int = 8 * 1024
    fields: int = 128
    body_grace_s: float = 5.0
    body_rate_bytes: int = 240
    bodies_bytes: int = 256 * 1024 * 1024
    framing_bytes: int = 64 * 1024
    pipelined: int = 16
    linger_s: float = 2.0
    unsent_bytes: int = 16 * 1024
    flush_s: float = 30.0
    probes: frozenset[bytes] = frozenset()


def tune(listener: socket.socket) -> None:
    """Applies back-pressure to the clients of `listener` that do not read: soon, not after the megabytes that the
    kernel would buffer. Connections of clients that acknowledge nothing are dropped. No effect on systems without these
    options."""
    for name, value in (("TCP_NOTSENT_LOWAT", _UNSENT_BYTES), ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS)):
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


class Refused(Exception):
    """A refused request. As an ASGI application it sends the reason, and the connection ends."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.status == 429:
            reply = error_reply(Overloaded(str(self)))
        else:
            json = (b"content-type", b"application/json")
            reply = ErrorReply(self.status, [json], http_error_body(self.status, str(self)))
        await send_error(send, reply, [])


def check_head(method: bytes, url: bytes, version: str, fields: Fields, bounds: Bounds) -> None:
    """Raises `Refused` for a head that the parser accepted; for nearly all it does not."""
    if version not in ("1.1", "1.0"):
        raise Refused(400, f"HTTP/{version} is not supported; use HTTP/1.1.")
    if len(url) > bounds.url_bytes:
        raise Refused(414, f"The request's URL is over {bounds.url_bytes} bytes.")
    if len(fields) > bounds.fields:
        raise Refused(431, f"The request has over {bounds.fields} header fields.")
    if method == b"CONNECT":
        raise Refused(405, "Not allowed: CONNECT. This is no proxy.")
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise Refused(400, f"The request needs one 'host' header, got {len(hosts)}.")
    if hosts and not is_authority(hosts[0].strip(b" \t").decode("latin-1")):
        raise Refused(400, "Invalid header 'host': expected a host with or without a port.")
    if codings := [value.lower() for name, value in fields if name == b"transfer-encoding"]:
        if version == "1.0":
            raise Refused(400, "Invalid header 'transfer-encoding': HTTP/1.0 has none.")
        if codings != [b"chunked"]:
            raise Refused(400, "Invalid header 'transfer-encoding': only 'chunked' is known here.")
