"""Checks of a request's head, and the complete responses to refused requests. They follow RFC 9112 (HTTP/1.1) and are
strict if it leaves a choice: a request that two servers could read differently is refused."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from slipstream_core.errors import Overloaded

from slipstream_gateway.api.errors import error_body, http_error_body
from slipstream_gateway.server.http.bounds import Bounds

Fields = list[tuple[bytes, bytes]]


class Refusal(NamedTuple):
    """A response of the server itself, after which the connection ends."""

    status: int
    message: str
    retry_after_s: int = 0

    def answer(self) -> bytes:
        """The complete response: the head, and a body in OpenAI's error form."""
        body = (
            error_body(Overloaded(self.message)) if self.status == 429 else http_error_body(self.status, self.message)
        )
        retry = f"retry-after: {self.retry_after_s}\r\n" if self.retry_after_s else ""
        head = (
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\ncontent-type: application/json\r\n{retry}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


class Refused(Exception):
    """Ends the parsing from one of the parser's callbacks."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


TOO_MANY_CONNECTIONS = Refusal(429, "The gateway has too many open connections.", retry_after_s=1)
TOO_MANY_BODIES = Refusal(429, "The gateway holds as many request bodies as it may; try again.", retry_after_s=1)
TOO_MANY_PIPELINED = Refusal(400, "Too many requests wait on this connection; read some answers first.")


def malformed(error: Exception) -> Refusal:
    """The refusal with the parser's message, which contains no byte of the request."""
    reason = str(error).strip().rstrip(".")
    return Refusal(400, f"The request is not valid HTTP: {reason or 'it cannot be read'}.")


def head_too_large(limit_bytes: int) -> Refusal:
    return Refusal(431, f"The request's head is over {limit_bytes} bytes.")


def body_too_slow(bounds: Bounds) -> Refusal:
    least = f"after {bounds.body_grace_s:g} s at least {bounds.body_rate_bytes} bytes per second are expected"
    return Refusal(408, f"The request body comes too slowly: {least}.")


def check_head(method: bytes, url: bytes, version: str, fields: Fields, bounds: Bounds) -> Refusal | None:
    """The refusal of a head that the parser accepted; None for nearly all."""
    if version not in ("1.1", "1.0"):
        return Refusal(400, f"HTTP/{version} is not spoken here: use HTTP/1.1.")
    if len(url) > bounds.url_bytes:
        return Refusal(414, f"The request's URL is over {bounds.url_bytes} bytes.")
    if len(fields) > bounds.fields:
        return Refusal(431, f"The request has over {bounds.fields} header fields.")
    if method == b"CONNECT":
        return Refusal(405, "Not allowed: CONNECT. This is no proxy.")
    names = [name for name, _ in fields]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return Refusal(400, f"The request needs one 'host' header, got {hosts}.")
    if b"transfer-encoding" in names:
        return _check_coding(version, fields)
    return None


def _check_coding(version: str, fields: Fields) -> Refusal | None:
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    if version == "1.0":
        return Refusal(400, "Invalid header 'transfer-encoding': HTTP/1.0 has none.")
    if len(codings) > 1 or codings[0].lower() != b"chunked":
        return Refusal(400, "Invalid header 'transfer-encoding': only 'chunked' is known here.")
    return None
