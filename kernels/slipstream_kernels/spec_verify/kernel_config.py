"""Division of a batch's rows among programs: one table, by batch size."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.sampling import TILE


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Launch configuration of the scan. It affects the result by rounding only."""

    splits: int
    """Programs per row, at most one per tile."""
    warps: int = 4
    registers: int | None = 64
    """Register limit per thread; None: the compiler's choice."""
    lazy: bool = True
    """Whether rows after a known end are skipped (early exit)."""


_TILES_PER_PROGRAM = ((2, 1), (8, 2), (32, 3), (128, 4), (2**31, 6))
"""Tiles per program for batches of up to so many requests. For one or two requests, one program per tile keeps all
multiprocessors busy. For larger batches, programs of several tiles start less often; they read the request's end before
each tile. With 32 logits per thread and 64 registers, each multiprocessor of an H200 has 64 KB of logits in flight; by
Little's law it needs about 30 KB. Not measured on a GPU."""

PLAIN_REGISTERS = 64
"""Registers for 16-bit logits without spills: eight programs of 128 threads per multiprocessor."""

WIDE_REGISTERS = 80
"""Registers for float32 logits or a grammar mask: six programs per multiprocessor."""

SPARSE_REGISTERS = 128
"""Registers for logit bias and penalties, whose search is inlined at each use: four programs per multiprocessor."""


def tiles_of(vocabulary: int) -> int:
    """The number of tiles of a row."""
    return -(-vocabulary // TILE)


def default_config(requests: int, vocabulary: int, *, registers: int | None = PLAIN_REGISTERS) -> LaunchConfig:
    """The configuration for `requests` requests and `vocabulary` tokens."""
    tiles_per_program = next(tiles for limit, tiles in _TILES_PER_PROGRAM if requests <= limit)
    return LaunchConfig(splits=-(-tiles_of(vocabulary) // tiles_per_program), registers=registers)
