"""What a client may hold before its request is admitted, and the one count that all connections share."""

from __future__ import annotations

import msgspec

SPARE_CONNECTIONS = 1024
"""Open connections beyond the requests that run and wait: idle clients, probes and metrics."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Of one connection, but for `bodies_bytes`, which all bodies of a worker share.

    A body may be slow for `body_grace_s`; from then on it brings `body_rate_bytes` per second (Kestrel's
    MinRequestBodyDataRate, and its figures). `framing_bytes` are what chunk sizes, chunk extensions and trailers may
    take beyond as much as the body itself. A refused client has `linger_s` to read why. While
    `unsent_bytes` wait for a client, no more is read for it from upstream; one that takes nothing for `flush_s` of what
    is left at the end is cut off. `probes` are paths that are answered beyond the limit of connections, too: that many
    clients are there does not mean that the process is not well.
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


class BodyBudget:
    """The bytes of request bodies that one worker holds. Bodies that come in one small piece are not counted: the
    number of connections bounds them."""

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes

    def take(self, count_bytes: int) -> bool:
        """Whether there was room; what was taken is given back."""
        if count_bytes > self._left_bytes:
            return False
        self._left_bytes -= count_bytes
        return True

    def give_back(self, count_bytes: int) -> None:
        self._left_bytes += count_bytes
