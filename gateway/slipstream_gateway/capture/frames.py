"""What a gateway sends to its capture writer, and what the writer reports: length-prefixed MessagePack."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum

import msgspec
from slipstream_core.manifest.capture import Capture

STARTED = b"\n"
"""The writer's first line: from now on it takes answers."""
_LENGTH = struct.Struct("<I")


class Result(StrEnum):
    """What became of an answer that was drawn for capture. All but `WRITTEN` are losses."""

    WRITTEN = "written"
    WRITER_BUSY = "writer_busy"
    """The writer did not keep up: its store is slow, or there is too much to redact."""
    WRITER_GONE = "writer_gone"
    """The writer was not running, or ended with the answer."""
    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    """The answer is not in OpenAI's form, or the prompt is token ids, which cannot be redacted."""
    TOO_SLOW = "too_slow"
    """The patterns took longer than `PATIENCE_S` of a processor."""
    INCOMPLETE = "incomplete"
    """The answer did not reach its end, came from several servers, or is of a new revision."""
    FAILED = "failed"
    """An unforeseen error, which is logged."""
    DAY_FULL = "day_full"
    """The policy's `maxBytesPerDay` is reached."""
    KEY_FULL = "key_full"
    """The key of the request has its `maxKeyShare` of the day."""
    STORE_FULL = "store_full"
    """The disk is full, or a quota is."""
    STORE_FAILED = "store_failed"


class Configured(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, tag="configured"):
    """The settings of a pair, sent before its first answer and after each change."""

    pair: str
    capture: Capture


class Captured(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, tag="captured"):
    """One whole answer with its request, neither parsed nor redacted.

    `request` is the body in OpenAI's form. The answer is `wire`: blocks in OpenAI's form, of a stream if
    `stream`. `token_ids` and `prompt_token_ids` are empty where the server returned none. `rejected_at[i]` counts the
    steps whose first rejected draft token was at position i. `key` is the public id of the caller's API key.
    """

    pair: str
    model: str
    target: str
    fingerprint: str
    request_id: str
    key: str
    time_s: float
    request_class: str
    arm: str
    draft_length: int
    temperature: float
    top_p: float
    endpoint: str
    request: bytes
    wire: tuple[bytes, ...]
    stream: bool
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    drafted: int
    accepted: int
    steps: int
    rejected_at: tuple[int, ...]


class CaptureCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a pair's answers that were drawn for capture and had this result: in a report of the writer, or all
    so far."""

    pair: str
    result: Result
    answers: int


Frame = Configured | Captured
_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(Frame).decode
decode_report = msgspec.json.Decoder(CaptureCount).decode


def encode_frame(frame: Frame) -> tuple[bytes, bytes]:
    """The frame's length and the frame."""
    data = _encoder.encode(frame)
    return _LENGTH.pack(len(data)), data


class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that `data` completes. Raises `msgspec.DecodeError` for bytes of another format."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            [length] = _LENGTH.unpack_from(self._data)
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            frame = _decode(bytes(self._data[_LENGTH.size : end]))
            del self._data[:end]
            yield frame
