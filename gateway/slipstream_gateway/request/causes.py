"""Errors by a name from a closed set, fit for a metric's label."""

from __future__ import annotations

import asyncio

from slipstream_core.errors import (
    ClientTimeout,
    DeadlineExceeded,
    Forbidden,
    LimitReached,
    ModelNotFound,
    NotAuthenticated,
    Overloaded,
    RequestError,
    StreamInterrupted,
    UnsupportedParameter,
    UpstreamFailed,
    UpstreamStalled,
    UpstreamTimeout,
    UpstreamUnavailable,
)

STALLED = "stalled"
# What a server may be blamed for.
FAILURES = frozenset({"overloaded", "upstream_timeout", "upstream_unavailable", "upstream_failed"})
_TYPES: tuple[tuple[type[BaseException], str], ...] = (
    (asyncio.CancelledError, "cancelled"),
    (RequestError, "invalid_request"),
    (ClientTimeout, "client_timeout"),
    (DeadlineExceeded, "deadline_exceeded"),
    (NotAuthenticated, "unauthenticated"),
    (Forbidden, "forbidden"),
    (LimitReached, "limit_reached"),
    (Overloaded, "overloaded"),
    (UpstreamTimeout, "upstream_timeout"),
    (UpstreamUnavailable, "upstream_unavailable"),
    (UpstreamFailed, "upstream_failed"),
)
# Every end but a good one, as metrics and spans name it.
STATUSES = frozenset({name for _, name in _TYPES} | {"internal"})


def error_type(error: BaseException) -> str:
    """What kind of end `error` makes; of a stream that was interrupted, by what."""
    if isinstance(error, StreamInterrupted):
        error = error.cause
    for kind, name in _TYPES:
        if isinstance(error, kind):
            return name
    return "internal"


def cause_of(error: BaseException) -> str:
    """Why an attempt failed: `error_type`, with streams that fell silent kept apart."""
    return STALLED if isinstance(error, UpstreamStalled) else error_type(error)


def rejection(error: BaseException) -> str:
    """Why there was no decision: `error_type`, with the causes kept apart that only arise before one."""
    if isinstance(error, ModelNotFound):
        return "model_not_found"
    return "unsupported_parameter" if isinstance(error, UnsupportedParameter) else error_type(error)
