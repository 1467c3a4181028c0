"""How a batch's rows are cut into tiles and programs. One table, which a tuning run may replace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """How the logits are cut up and run. The answer depends on it only by rounding."""

    block: int
    """Tokens per tile, a power of two."""
    splits: int
    """Programs per row, at most one per tile."""
    warps: int
    stages: int = 1
    """How many tiles a program has under way at a time, 1 or 2."""
    registers: int | None = 64
    """The most registers that a thread may take; None: as many as the compiler likes."""
    lazy: bool = True
    """Whether rows behind a rejection are left out once it is known."""


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """For batches of up to `requests`."""

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
"""One or two requests: as many programs as there are tiles, so that no processor is idle. Many: programs of
several tiles, whose state word is asked for before each, so that their start costs less. At 32 logits a thread and
64 registers, 64 KB of logits are under way on each processor of an H200, which needs about 30 KB by Little's law.
Predicted by `benchmark.simulation`; not measured."""

_SMALLEST_BLOCK = 128


PLAIN_REGISTERS = 64
"""What 16-bit logits take without spilling: four programs of 256 threads on a processor."""

WIDE_REGISTERS = 80
"""What float32 logits or a grammar's mask take: three programs."""

SPARSE_REGISTERS = 128
"""What logit bias and penalties take, whose search is compiled into each use: two programs."""


def default_config(requests: int, vocabulary: int, *, registers: int | None = PLAIN_REGISTERS) -> LaunchConfig:
    """The configuration for `requests` requests and `vocabulary` tokens. Small vocabularies are one small tile."""
    choice = next(choice for choice in _TABLE if requests <= choice.requests)
    block = min(choice.block, max(_SMALLEST_BLOCK, 1 << (vocabulary - 1).bit_length()))
    tiles = -(-vocabulary // block)
    return LaunchConfig(
        block=block,
        splits=-(-tiles // choice.tiles_per_program),
        registers=registers,
        warps=max(1, min(choice.warps, block // 1024)),
    )
