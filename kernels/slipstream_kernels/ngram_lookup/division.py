"""Work division of the kernel. The benchmark uses it without importing triton."""

from __future__ import annotations

_SMALLEST_TILE, _LARGEST_TILE = 256, 2048
_RESIDENT_PROGRAMS = 660  # five of 256 threads and up to 48 registers on each of an H200's 132 multiprocessors


def division(requests: int, columns: int) -> tuple[int, int]:
    """Tokens per tile (a power of two), and the programs that share the tiles of one request."""
    tile = _SMALLEST_TILE
    while tile < min(columns, _LARGEST_TILE):
        tile *= 2
    tiles = -(-columns // tile)
    # To share costs two atomics, as much as a second tile.
    return tile, 1 if tiles <= 2 else max(1, min(tiles, _RESIDENT_PROGRAMS // max(requests, 1)))
