"""A ledger as text: compressed msgpack behind a checksum, in base64."""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from slipstream_core.redis.inbox import Position

from slipstream_operator.errors import OperatorError
from slipstream_operator.rollout.analysis.facts import ClassMemory
from slipstream_operator.rollout.analysis.record import ClassRecord

MAX_CHARS = 262_144
"""The maximum length in the resource's schema, and of a text that is read."""
MAX_WRITTEN_CHARS = MAX_CHARS * 15 // 16
_Value = TypeVar("_Value")
_VERSION = 3
# Only the states of the classes are read from these versions. The outcomes are read from the store again.
_OLDER = frozenset({1, 2})
_DIGEST_BYTES = 8
_MAX_BYTES = 4 * 1024 * 1024


class CheckpointError(OperatorError):
    """A checkpoint that cannot be used: damaged, edited, or of another version. The message has the cause."""


class State(msgspec.Struct, kw_only=True, array_like=True):
    """The content of a ledger. `standings` are the states of the classes, `records` their evidence. `without` has, for
    each group of keys, the evidence without it (see `agreement`); `keys` is the first key of each group.

    While `paused`, no outcome counts as evidence. After the pause, an outcome counts if its request began at
    `resumed_s` (seconds since 1970) or later.
    """

    pair: str
    position: Position | None = None
    standings: dict[str, ClassMemory] = {}
    records: dict[str, ClassRecord] = {}
    paused: bool = False
    resumed_s: float = -math.inf
    keys: list[str] = []
    without: list[dict[str, ClassRecord]] = []


class _Standings(msgspec.Struct, array_like=True):
    """A `State` of which only the pair and the states of the classes are decoded."""

    pair: str
    position: msgspec.Raw
    standings: dict[str, ClassMemory]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State)
_standings_decoder = msgspec.msgpack.Decoder(_Standings)


def write_checkpoint(state: State) -> str:
    """`state` as text; the same state gives the same text.

    If the API server rejected the text, no transition could be stored. Above `MAX_WRITTEN_CHARS`, parts are therefore
    left out, in this order: the figures; the sequence numbers, which distinguish old outcomes from new ones after a
    loss of Redis; the records, with those without each group of keys. The states of the classes are always kept.
    """
    text = _encoded(state)
    for lighten in (_without_figures, _without_numbers, _without_records):
        if len(text) <= MAX_WRITTEN_CHARS:
            break
        state = lighten(state)
        text = _encoded(state)
    return text


def read_checkpoint(text: str) -> State:
    """The state in `text`. Raises `CheckpointError` unless `write_checkpoint` of this or an older version wrote it."""
    version, packed = _opened(text)
    if version in _OLDER:
        older = _decoded(packed, _standings_decoder)
        return State(pair=older.pair, standings=dict(older.standings))
    return _decoded(packed, _decoder)


def sealed_standings(text: str, pair: str | None = None) -> Mapping[str, ClassMemory]:
    """The states of the classes in `text`; empty if it cannot be read, or is of another pair than `pair` (None: any
    pair)."""
    try:
        sealed = _decoded(_opened(text)[1], _standings_decoder)
    except CheckpointError:
        return {}
    return sealed.standings if pair in (None, sealed.pair) else {}


def _encoded(state: State) -> str:
    packed = bytes([_VERSION]) + zlib.compress(_encoder.encode(state), 6)
    return base64.b64encode(_digest(packed) + packed).decode()


def _without_figures(state: State) -> State:
    light, *without = (
        {name: msgspec.structs.replace(record, speculative=None, control=None) for name, record in records.items()}
        for records in (state.records, *state.without)
    )
    return msgspec.structs.replace(state, records=light, without=without)


def _without_numbers(state: State) -> State:
    at = state.position
    return msgspec.structs.replace(state, position=None if at is None else Position(entry=at.entry, numbers={}))


def _without_records(state: State) -> State:
    return msgspec.structs.replace(state, records={}, keys=[], without=[])


def _opened(text: str) -> tuple[int, bytes]:
    """The version of a checkpoint, and its compressed content. Raises `CheckpointError`."""
    if len(text) > MAX_CHARS:
        raise CheckpointError(f"must have at most {MAX_CHARS} characters, got {len(text)}")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CheckpointError(f"is not base64 ({error})") from error
    digest, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if not packed or digest != _digest(packed):
        raise CheckpointError("its checksum does not match: it was damaged or edited")
    if packed[0] != _VERSION and packed[0] not in _OLDER:
        raise CheckpointError(f"is of version {packed[0]}, this operator reads version {_VERSION}")
    return packed[0], packed[1:]


def _decoded(packed: bytes, decoder: msgspec.msgpack.Decoder[_Value]) -> _Value:
    try:
        return decoder.decode(zlib.decompressobj().decompress(packed, _MAX_BYTES))
    except (zlib.error, msgspec.DecodeError) as error:
        raise CheckpointError(f"cannot be read ({error})") from error


def _digest(packed: bytes) -> bytes:
    return hashlib.sha256(packed).digest()[:_DIGEST_BYTES]
