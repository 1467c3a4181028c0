"""The limit on open files and sockets of this process: the soft limit is often 1,024, the hard one far higher."""

from __future__ import annotations

import resource

_ENOUGH = 1_048_576  # some container runtimes permit a thousand times as many; some libraries allocate memory for all


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
