"""Names of errors from a closed set, suitable as metric labels."""

from __future__ import annotations

import asyncio

from slipstream_core.errors import (
    BreaksServers,
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
# The errors that count as failures of a server.
FAILURES = frozenset({"overloaded", "upstream_timeout", "upstream_unavailable", "upstream_failed"})
# The errors that are the client's own.
CLIENT_ERRORS = frozenset({"invalid_request", "client_timeout", "unauthenticated", "forbidden", "limit_reached"})
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
# All statuses except `ok`, as in metrics and spans.
STATUSES = frozenset({name for _, name in _TYPES} | {"internal"})


def error_type(error: BaseException) -> str:
    """The name of `error`; of an interrupted stream, the name of its cause."""
    if isinstance(error, StreamInterrupted):
        error = error.cause
    for kind, name in _TYPES:
        if isinstance(error, kind):
            return name
    return "internal"


def cause_of(error: BaseException) -> str:
    """The cause of a failed attempt: `error_type`, with a separate name for streams that fell silent."""
    return STALLED if isinstance(error, UpstreamStalled) else error_type(error)


def rejection(error: BaseException) -> str:
    """The cause of a refusal before the decision: `error_type`, with separate names for errors that occur only
    there."""
    if isinstance(error, ModelNotFound):
        return "model_not_found"
    if isinstance(error, BreaksServers):
        return "breaks_servers"
    return "unsupported_parameter" if isinstance(error, UnsupportedParameter) else error_type(error)
