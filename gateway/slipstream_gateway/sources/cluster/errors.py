"""What can go wrong with the cluster's API, mapped once from the client library's errors and the server's answers.

ClusterError                 any of them; `str(error)` is one line
├── ClusterUnreachable       no answer: connection, TLS or a deadline; or no credentials to ask with
└── ClusterRefused           an answer that is no success; `status` is its HTTP status
    └── ResourceExpired      410: the version to go on from is no longer known, a new list is needed
"""

from __future__ import annotations

from slipstream_core.errors import SlipstreamError


class ClusterError(SlipstreamError):
    """The cluster's API could not do what was asked."""


class ClusterUnreachable(ClusterError):
    """It did not answer."""


class ClusterRefused(ClusterError):
    """It answered with an error of HTTP `status`."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class ResourceExpired(ClusterRefused):
    """What was asked to go on from is gone."""


def refused(status: int, message: str) -> ClusterRefused:
    """The error for an answer of `status`, which says `message`."""
    kind = ResourceExpired if status == 410 else ClusterRefused
    return kind(message, status=status)
