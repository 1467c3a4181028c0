"""Makes chunks of different runs comparable by removing their engine times."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace
from slipstream_engine.types import Chunk


def without_engine_time(chunks: Iterable[Chunk]) -> list[Chunk]:
    """`chunks` without their engine times."""
    return [replace(chunk, counts=replace(chunk.counts, engine_s=None)) for chunk in chunks]
