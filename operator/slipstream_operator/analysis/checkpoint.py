"""A ledger as text, for `status.checkpoint`: compressed msgpack behind a checksum, in base64."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from slipstream_gateway.stores.position import Position

from slipstream_operator.analysis.facts import ClassMemory
from slipstream_operator.analysis.record import ClassRecord
from slipstream_operator.errors import OperatorError

MAX_CHARS = 262_144
_Value = TypeVar("_Value")
_VERSION = 1
_DIGEST_BYTES = 8
_MAX_BYTES = 4 * 1024 * 1024


class CheckpointError(OperatorError):
    """A checkpoint that cannot be used: damaged, edited, or of another version. The message says which."""


class State(msgspec.Struct, kw_only=True, array_like=True):
    """All that a ledger remembers. `standings` is where the classes are, `records` what was counted of each."""

    pair: str
    position: Position | None = None
    standings: dict[str, ClassMemory] = {}
    records: dict[str, ClassRecord] = {}


class _Standings(msgspec.Struct, array_like=True):
    """A `State` of which only one part is looked at."""

    pair: msgspec.Raw
    position: msgspec.Raw
    standings: dict[str, ClassMemory]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State)
_standings_decoder = msgspec.msgpack.Decoder(_Standings)


def write_checkpoint(state: State) -> str:
    """`state` as text; the same state gives the same text."""
    packed = bytes([_VERSION]) + zlib.compress(_encoder.encode(state), 6)
    return base64.b64encode(_digest(packed) + packed).decode()


def read_checkpoint(text: str) -> State:
    """Raises `CheckpointError` for anything but what `write_checkpoint` made."""
    return _decoded(text, _decoder)


def sealed_standings(text: str) -> Mapping[str, ClassMemory]:
    """Where the classes were when `text` was written; empty where it cannot be read."""
    try:
        return _decoded(text, _standings_decoder).standings
    except CheckpointError:
        return {}


def _decoded(text: str, decoder: msgspec.msgpack.Decoder[_Value]) -> _Value:
    if len(text) > MAX_CHARS:
        raise CheckpointError(f"status.checkpoint: must have at most {MAX_CHARS} characters, got {len(text)}")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CheckpointError(f"status.checkpoint: is not base64 ({error})") from error
    digest, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if not packed or digest != _digest(packed):
        raise CheckpointError("status.checkpoint: its checksum does not fit, it was damaged or edited")
    if packed[0] != _VERSION:
        raise CheckpointError(f"status.checkpoint: is of version {packed[0]}, this operator reads {_VERSION}")
    try:
        return decoder.decode(zlib.decompressobj().decompress(packed[1:], _MAX_BYTES))
    except (zlib.error, msgspec.DecodeError) as error:
        raise CheckpointError(f"status.checkpoint: cannot be read ({error})") from error


def _digest(packed: bytes) -> bytes:
    return hashlib.sha256(packed).digest()[:_DIGEST_BYTES]
