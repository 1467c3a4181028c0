"""Settings of the C library's allocator for returning memory to the system."""

from __future__ import annotations

import ctypes
import os

LARGE_BYTES = 128 * 1024
# mallopt(3). Setting either one fixes both. Otherwise they grow with the largest freed block, up to 32 MiB.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def give_large_blocks_back() -> None:
    """Returns every block of `LARGE_BYTES` or more to the system when it is freed. By default glibc keeps up to twice
    the largest one, so that a few large bodies occasionally leave a process 15 MB larger. No effect if the environment
    sets these options, or with another C library."""
    if any(name in os.environ for name in _CHOSEN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(parameter, LARGE_BYTES)
