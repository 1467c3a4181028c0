"""What the C library's allocator keeps of memory that was given back."""

from __future__ import annotations

import ctypes
import os

LARGE_BYTES = 128 * 1024
# mallopt(3). To set one of them ends that both grow with the largest block that was ever given back, up to 32 MiB.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def give_large_blocks_back() -> None:
    """Has every block of `LARGE_BYTES` or more go back to the system when it is freed. By itself glibc keeps as much
    as twice the largest one for later, so that a few large bodies leave a process 15 MB larger, now and then. Nothing
    changes for who chose by the environment, nor with another C library."""
    if any(name in os.environ for name in _CHOSEN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(parameter, LARGE_BYTES)
