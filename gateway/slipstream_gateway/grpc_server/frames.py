"""Frames of HTTP/2 (RFC 9113) and the few header blocks that a gRPC server sends (RFC 7541)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">HBBBI")
"""A frame's header: length (16 and 8 bits), type, flags, stream."""
FRAME_BYTES = 16_384
"""The longest payload, both ways: the least that RFC 9113 allows as a limit, and the default."""
WINDOW_BYTES = 65_535
"""The windows of a new connection and of its streams, until a SETTINGS frame changes those of streams."""
LARGEST_WINDOW_BYTES = 2**31 - 1


class FrameType(IntEnum):
    """RFC 9113, section 6."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    """RFC 9113, section 6. `ACK` is that of SETTINGS and PING."""

    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class ErrorCode(IntEnum):
    """RFC 9113, section 7, as far as they are sent."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """RFC 9113, section 6.5.2, as far as they are used."""

    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_HEADER_LIST_SIZE = 6


class BrokenProtocol(Exception):
    """The client broke the protocol in a way that ends the connection (RFC 9113, section 5.4.1)."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: FrameType, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of at most `FRAME_BYTES`."""
    return HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def settings(values: Mapping[Setting, int]) -> bytes:
    payload = b"".join(struct.pack(">HI", name, value) for name, value in values.items())
    return frame(FrameType.SETTINGS, 0, 0, payload)


def uint32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def without_padding(flags: int, payload: bytes, *, has_priority: bool = False) -> bytes:
    """The payload of DATA or HEADERS alone. Raises `BrokenProtocol` if the padding is longer than the frame."""
    start = end = 0
    if flags & Flag.PADDED:
        start, end = 1, payload[0] if payload else 1
    if has_priority and flags & Flag.PRIORITY:
        start += 5
    if start + end > len(payload):
        raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a frame is shorter than its padding")
    return payload[start : len(payload) - end]


def _string(text: bytes) -> bytes:
    """A string literal without Huffman coding, of less than 127 bytes (RFC 7541, section 5.2)."""
    return bytes([len(text)]) + text


EMPTY_TABLE = b"\x20"
"""An update of the encoder's table to size 0. A client may lower the size at any time, which the next header block has
to confirm (RFC 7541, section 4.2); a table of size 0 needs no more confirmations."""
RESPONSE_HEAD = b"\x88\x0f\x10" + _string(b"application/grpc")
"""`:status: 200` by its index, and `content-type` by the index of its name, not added to the dynamic table."""


def trailers(status: int, message: str) -> bytes:
    """The header block of `grpc-status` and `grpc-message`."""
    block = b"\x00" + _string(b"grpc-status") + _string(b"%d" % status)
    if message:
        block += b"\x00" + _string(b"grpc-message") + _string(message.encode("ascii", "replace")[:120])
    return block
