"""How many files and sockets this process may have open: the soft limit is often 1,024, the hard one far above."""

from __future__ import annotations

import resource

_ENOUGH = 1_048_576  # some container runtimes allow a thousand times as many, and some libraries make room for them all


def raise_open_files() -> int:
    """Raises the soft limit of this process to its hard limit, and returns what it may have open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # the kernel allows less than its hard limit says
            return soft
        return wanted
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft
