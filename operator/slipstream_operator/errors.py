"""What can go wrong between the operator and the API server.

OperatorError
├── ApiError             an answer that is an error, or none
│   ├── ApiUnavailable   nobody answers, or "later": worth another try
│   ├── ApiConflict      somebody else wrote first: worth another try, with a fresh look
│   ├── ApiNotFound      there is no such object, namespace or kind
│   └── ApiRejected      the request itself is refused: forbidden, invalid, too large
├── ForeignObject        an object of that name is there, and it is not ours
└── LeadershipLost       another instance has taken over
"""

from __future__ import annotations

from slipstream_core.errors import SlipstreamError


class OperatorError(SlipstreamError):
    """The root. `str(error)` is one clear line for a person."""


class ApiError(OperatorError):
    """`status` is HTTP's, 0 where there was no answer; `retry_after_s` is what the server asked for."""

    def __init__(self, message: str, *, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class ApiUnavailable(ApiError):
    """No answer within the deadline, 401, 429 or 5xx."""


class ApiConflict(ApiError):
    """409: the object changed, or exists already."""


class ApiNotFound(ApiError):
    """404."""


class ApiRejected(ApiError):
    """Any other 4xx; the message has the server's reason."""


class ForeignObject(OperatorError):
    """A child's name is taken by an object that somebody else made; it is left alone."""


class LeadershipLost(OperatorError):
    """The Lease could not be renewed in time, or is another's."""
