"""Random bytes for ids and seeds. They are drawn from the operating system in blocks, because each draw is a system
call: of two draws per request, which took 10 µs, one in some hundreds remains."""

from __future__ import annotations

import os

_BLOCK_BYTES = 4096


class RandomBytes:
    """A block of random bytes, each of which is returned once. For one thread; a forked process gets a block of its
    own."""

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
