"""Random bytes for ids, seeds and draws.

Each draw from the operating system is a system call. A request needs three draws, which took 15 µs; so bytes are drawn
in blocks that last for 85 requests.
"""

from __future__ import annotations

import os

_BLOCK_BYTES = 4096


class RandomBytes:
    """A block of random bytes, each of which is returned once. For one thread. A forked process draws its own block."""

    def __init__(self) -> None:
        self._block = b""
        self._used = 0
        os.register_at_fork(after_in_child=self._drop)

    def take(self, count: int) -> bytes:
        """`count` bytes, at most 4,096."""
        end = self._used + count
        if end > len(self._block):
            self._block, end = os.urandom(_BLOCK_BYTES), count
        self._used = end
        return self._block[end - count : end]

    def _drop(self) -> None:
        self._block, self._used = b"", 0


random_bytes = RandomBytes().take


def random_share() -> float:
    """A uniform number in [0, 1)."""
    return int.from_bytes(random_bytes(4)) * 2.0**-32


def random_seed() -> int:
    """A seed of 53 bits: a client whose numbers are doubles can repeat it."""
    return int.from_bytes(random_bytes(8)) >> 11
