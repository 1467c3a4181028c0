"""Header blocks of a client (RFC 7541). Of their content only the path of a call is used."""

from __future__ import annotations

import re
from typing import NamedTuple

from hpack import Decoder, HPACKError

from slipstream_gateway.grpc_server.frames import BrokenProtocol, ErrorCode, Flag

MAX_HEADER_BYTES = 8 * 1024
"""As gRPC's own default for metadata."""
_KEPT_BLOCKS, _KEPT_BYTES = 64, 1024  # of one connection, and of one block: those that Envoy repeats are short
_RESIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
"""Three changes of the table's size, of which RFC 7541, section 4.2, allows two. The decoder takes 5 µs for each."""


class Block(NamedTuple):
    """A whole header block, and the flags of its first frame."""

    stream: int
    flags: int
    data: bytes


class HeaderBlocks:
    """Joins the frames of the header blocks of one connection, and decodes the blocks, in their order.

    A client repeats its header blocks. One that left the decoder's table as it was means the same until another changes
    the table; until then it is looked up.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._paths: dict[bytes, str] = {}
        self._open: tuple[int, int, bytearray] | None = None  # stream, flags, and its block so far

    @property
    def is_open(self) -> bool:
        """Whether the next frame has to continue a block."""
        return self._open is not None

    def begin(self, stream: int, flags: int, part: bytes) -> Block | None:
        """The block of a HEADERS frame, if it is whole. Raises `BrokenProtocol`."""
        if len(part) > MAX_HEADER_BYTES:
            raise BrokenProtocol(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & Flag.END_HEADERS:
            return Block(stream, flags, part)
        self._open = stream, flags, bytearray(part)
        return None

    def go_on(self, stream: int, flags: int, part: bytes) -> Block | None:
        """The block that a CONTINUATION frame ends, if it does. Raises `BrokenProtocol`."""
        if self._open is None or self._open[0] != stream:
            raise BrokenProtocol(ErrorCode.PROTOCOL_ERROR, "a frame continues no header block")
        _, first_flags, data = self._open
        data += part
        if len(data) > MAX_HEADER_BYTES:
            raise BrokenProtocol(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if not flags & Flag.END_HEADERS:
            return None
        self._open = None
        return Block(stream, first_flags, bytes(data))

    def path_of(self, block: bytes) -> str:
        """The pseudo-header `:path` of `block`; empty in trailers. Raises `BrokenProtocol`."""
        path = self._paths.get(block)
        if path is not None:
            return path
        if _RESIZES.match(block):
            raise BrokenProtocol(ErrorCode.COMPRESSION_ERROR, "a header block changes the size of the table too often")
        size, newest = self._table()
        try:
            headers = dict(self._decoder.decode(block, raw=True))
        except HPACKError as exc:
            raise BrokenProtocol(ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded") from exc
        path = headers.get(b":path", b"").decode("latin-1")
        size_after, newest_after = self._table()
        if size_after != size or newest_after is not newest or len(self._paths) >= _KEPT_BLOCKS:
            self._paths.clear()
        elif len(block) <= _KEPT_BYTES:
            self._paths[block] = path
        return path

    def _table(self) -> tuple[tuple[int, int], object]:
        """The sizes of the decoder's table, and its newest entry: another object after each addition."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return (len(entries), table.maxsize), entries[0] if entries else None
