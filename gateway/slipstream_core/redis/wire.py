"""The format of outcomes in Redis: the fields of a stream entry, and batches as msgpack.

An entry holds up to `BATCH` outcomes of one pair by one origin (one gateway process): one command for many outcomes.
Its fields: `v` the version of this format, `o` the origin, `n` the number of its first outcome among all that the
origin ever wrote to this stream, `b` the batch. Numbers start at 1 and rise along the stream, so that the last number
per origin tells a reader which outcomes are new. A batch is immutable once it has a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from slipstream_core.observation import Observation

VERSION = "1"
BATCH = 16
# Larger than any batch of ours (0.5 kB per outcome): a larger entry is not from a gateway.
LARGEST_BATCH_BYTES = 64 * 1024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Observation])


class Frame(NamedTuple):
    """A batch with the number of its first outcome, which was recorded at `since_s`."""

    first: int
    outcomes: int
    payload: bytes
    since_s: float


def stream_key(pair: str) -> str:
    return f"slipstream:outcomes:{pair}"


def marker_key(pair: str, origin: str) -> str:
    """The key that holds the number of an origin's last batch in a pair's stream."""
    return f"slipstream:stored:{pair}:{origin}"


def encode(observations: Sequence[Observation], *, first: int, since_s: float) -> Frame | None:
    """None if the batch cannot be encoded: a value of a foreign type, or one beyond the format's range."""
    try:
        payload = _encoder.encode(observations)
    except (TypeError, ValueError, OverflowError):
        return None
    return Frame(first, len(observations), payload, since_s) if len(payload) <= LARGEST_BATCH_BYTES else None


def decode(payload: bytes, *, pair: str) -> list[Observation] | None:
    """The outcomes of a batch; None if it is not a batch of `pair`."""
    try:
        observations = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    if any(observation.subject.pair != pair for observation in observations):
        return None
    return observations or None
