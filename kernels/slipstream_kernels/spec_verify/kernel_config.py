"""Division of a batch's rows into tiles and programs: one table, by batch size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Launch configuration of the scan. It affects the result by rounding only."""

    block: int
    """Tokens per tile, a power of two."""
    splits: int
    """Programs per row, at most one per tile."""
    warps: int
    stages: int = 1
    """Number of tiles that a program has in flight, 1 or 2."""
    registers: int | None = 64
    """Register limit per thread; None: the compiler's choice."""
    lazy: bool = True
    """Whether rows after a known rejection are skipped (early exit)."""


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """Configuration for batches of up to `requests`."""

    requests: int
    block: int
    tiles_per_program: int
    warps: int


_TABLE = (
    _Choice(requests=2, block=4096, tiles_per_program=1, warps=4),
    _Choice(requests=8, block=4096, tiles_per_program=2, warps=4),
    _Choice(requests=32, block=4096, tiles_per_program=3, warps=4),
    _Choice(requests=128, block=8192, tiles_per_program=2, warps=8),
    _Choice(requests=2**31, block=8192, tiles_per_program=3, warps=8),
)
"""For one or two requests, one program per tile keeps all multiprocessors busy. For larger batches, programs of several
tiles start less often; they read the state word before each tile. With 32 logits per thread and 64 registers, each
multiprocessor of an H200 has 64 KB of logits in flight; by Little's law it needs about 30 KB. Not measured on a GPU."""

_SMALLEST_BLOCK = 128


PLAIN_REGISTERS = 64
"""Registers for 16-bit logits without spills: four programs of 256 threads per multiprocessor."""

WIDE_REGISTERS = 80
"""Registers for float32 logits or a grammar mask: three programs per multiprocessor."""

SPARSE_REGISTERS = 128
"""Registers for logit bias and penalties, whose search is inlined at each use: two programs per multiprocessor."""


def default_config(requests: int, vocabulary: int, *, registers: int | None = PLAIN_REGISTERS) -> LaunchConfig:
    """The configuration for `requests` requests and `vocabulary` tokens. A small vocabulary is a single small tile."""
    choice = next(choice for choice in _TABLE if requests <= choice.requests)
    block = min(choice.block, max(_SMALLEST_BLOCK, 1 << (vocabulary - 1).bit_length()))
    tiles = -(-vocabulary // block)
    return LaunchConfig(
        block=block,
        splits=-(-tiles // choice.tiles_per_program),
        registers=registers,
        warps=max(1, min(choice.warps, block // 1024)),
    )
