"""Settings of the process: how many files it may open, and how its allocator returns memory to the system."""

from __future__ import annotations

import ctypes
import os
import resource

LARGE_BYTES = 128 * 1024
# mallopt(3). Setting either one fixes both. Otherwise they grow with the largest freed block, up to 32 MiB.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
_ENOUGH = 1_048_576  # some container runtimes permit a thousand times as many; some libraries allocate memory for all


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


def raise_open_files() -> int:
    """Raises the soft limit of this process to its hard limit, at most `_ENOUGH`. Returns the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # the kernel permits less than the hard limit
            return soft
        return wanted
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft
