"""Bounds on the resources of a client before its request is admitted, and the byte count shared by all connections."""

from __future__ import annotations

import msgspec

SPARE_CONNECTIONS = 1024
"""Open connections beyond the running and waiting requests: idle clients, probes and metrics."""


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


class BodyBudget:
    """The bytes of request bodies that one worker may hold. Bodies that arrive in one small piece are not counted: the
    number of connections bounds them."""

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes

    def take(self, count_bytes: int) -> bool:
        """Reserves `count_bytes`; `give_back` releases them. False: the budget does not suffice."""
        if count_bytes > self._left_bytes:
            return False
        self._left_bytes -= count_bytes
        return True

    def give_back(self, count_bytes: int) -> None:
        self._left_bytes += count_bytes
