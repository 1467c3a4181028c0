"""Bytes to a server and back over a real socket, without a client that would make them well-formed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

CHUNK_BYTES = 65536
CLOSE_S = 15.0


class Answers(NamedTuple):
    """What came back: final statuses in order, all bytes, whether the server closed by itself, and whether it did
    neither answer nor close in time."""

    statuses: tuple[int, ...]
    data: bytes
    closed: bool
    hung: bool

    @property
    def body(self) -> bytes:
        return self.data.rpartition(b"\r\n\r\n")[2]


def statuses_of(data: bytes, *, heads_only: bool = False) -> tuple[tuple[int, ...], bool]:
    """The final statuses of the whole answers in `data`, and whether nothing but whole answers is in it. Raises
    `ValueError` where it is no HTTP."""
    found: list[int] = []
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            return tuple(found), False
        lines = head.lower().split(b"\r\n")
        if not lines[0].startswith(b"http/1.1 "):
            raise ValueError(f"no status line: {lines[0][:80]!r}")
        status, fields = int(lines[0].split()[1]), dict(line.partition(b": ")[::2] for line in lines[1:])
        left = rest if status < 200 or heads_only else _after_body(fields, rest)
        if left is None:
            return tuple(found), False
        data = left
        if status >= 200:
            found.append(status)
    return tuple(found), True


def _after_body(fields: dict[bytes, bytes], rest: bytes) -> bytes | None:
    """What follows the body; None where it is not whole."""
    if fields.get(b"transfer-encoding") == b"chunked":
        at = 0
        while True:
            line = rest.find(b"\r\n", at)
            if line < 0:
                return None
            size = int(rest[at:line], 16)
            at = line + 2 + size + 2
            if at > len(rest):
                return None
            if size == 0:
                return rest[at:]
    length = fields.get(b"content-length")
    if length is None:
        return b""  # it ends with the connection
    return None if len(rest) < int(length) else rest[int(length) :]


async def talk(
    port: int,
    pieces: Sequence[bytes],
    *,
    answers: int = 1,
    quiet_s: float = 10.0,
    pause_s: float = 0.0,
    heads_only: bool = False,
) -> Answers:
    """Sends `pieces`, `pause_s` apart, and reads until there are `answers` or the server closes. Without either for
    `quiet_s` it closes its own half, as one that has no more to say; a server that is still there `CLOSE_S` later
    hangs."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK_BYTES)
    data, closed, hung = bytearray(), False, False
    try:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
        for limit_s in (quiet_s, CLOSE_S):
            try:
                async with asyncio.timeout(limit_s):
                    closed = await _read(reader, data, answers, heads_only)
                    hung = False
                    break
            except TimeoutError:
                hung = True
                with contextlib.suppress(OSError):
                    writer.write_eof()
    finally:
        writer.close()
    return Answers(statuses_of(bytes(data), heads_only=heads_only)[0], bytes(data), closed, hung)


async def _read(reader: asyncio.StreamReader, data: bytearray, answers: int, heads_only: bool) -> bool:
    """Whether the server closed before there were `answers`."""
    while True:
        try:
            part = await reader.read(CHUNK_BYTES)
        except ConnectionError:
            return True
        data += part
        if not part:
            return True
        if len(statuses_of(bytes(data), heads_only=heads_only)[0]) >= answers:
            return False
