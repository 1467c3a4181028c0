"""A decision as plain values, for the response of `POST /v1/route` and the output of `slipstream route --json`."""

from __future__ import annotations

from typing import Any

import msgspec
from slipstream_core.types import Decision, RequestProfile


def explanation(pair: str, profile: RequestProfile, decision: Decision, *, internals: bool = True) -> dict[str, Any]:
    """The decision for a request to `pair`, with the profile and all its numbers. Without `internals` it leaves out
    what the gateway has learned from other requests; the profile is the request's own."""
    return {
        "object": "slipstream.decision",
        "pair": pair,
        "arm": decision.arm,
        "reason": decision.reason,
        **({"detail": decision.detail} if internals else {}),
        "class": decision.request_class,
        "draft_length": decision.draft_length,
        "saving_s": decision.saving_s,
        **({"numbers": dict(decision.numbers)} if internals else {}),
        "profile": msgspec.to_builtins(profile),
    }
