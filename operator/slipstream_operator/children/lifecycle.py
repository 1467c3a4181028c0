"""The end of a server's pod: no new requests, the running answers, the program's own exit."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.serving import Serving

LEAVE_S = 10
"""The time between the deletion of a server's pod and its SIGTERM: by then no gateway sends it requests."""

_EXIT_MARGIN_S = 15  # the program unloads its model after the last answer


def leave_hook() -> dict[str, Any]:
    """The hook before SIGTERM."""
    return {"preStop": {"exec": {"command": ["sleep", str(LEAVE_S)]}}}


def grace_period_s(serving: Serving) -> int:
    """The grace period of a pod: the time until no gateway sends requests, until the running answers are finished, and
    until the program has ended."""
    return LEAVE_S + serving.drain_seconds + _EXIT_MARGIN_S
