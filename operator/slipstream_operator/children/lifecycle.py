"""The end of a server's pod: no new requests, the running answers, the program's own exit."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.serving import Serving

LEAVE_S = 10
"""The time between the deletion of a server's pod and its SIGTERM: by then no gateway sends it requests."""

_EXIT_MARGIN_S = 15  # the program unloads its model after the last answer


def leave_hook(serving: Serving, *, is_worker: bool) -> dict[str, Any]:
    """The hook before SIGTERM. The pods of a group are deleted together, and its leader needs the workers for its
    running answers: they get SIGTERM after it."""
    seconds = LEAVE_S + serving.drain_seconds if is_worker else LEAVE_S
    return {"preStop": {"exec": {"command": ["sleep", str(seconds)]}}}


def grace_period_s(serving: Serving) -> int:
    """The grace period of a pod: the time until no gateway sends requests, until the running answers are finished, and
    until the program has ended."""
    return LEAVE_S + serving.drain_seconds + _EXIT_MARGIN_S
