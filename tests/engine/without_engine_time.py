"""Chunks that are compared with those of another run: times differ in each."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace
from slipstream_engine.types import Chunk


def without_engine_time(chunks: Iterable[Chunk]) -> list[Chunk]:
    """`chunks` without the engine's time."""
    return [replace(chunk, counts=replace(chunk.counts, engine_s=None)) for chunk in chunks]
