"""Bounds on what the clients of one server may use."""

from __future__ import annotations

import msgspec


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """`message_bytes` bounds one message, `held_bytes` the unread messages of all clients together.

    A connection has `preface_s` for HTTP/2's preface and its SETTINGS. At `connections` the longest open one without a
    call is closed for a new one, first those that never had a call; if all have calls, the new one is dropped.
    """

    message_bytes: int
    held_bytes: int
    connections: int = 512
    preface_s: float = 10.0
