"""Errors of the Kubernetes API, mapped once from the client library's exceptions and the server's answers.

KubeError                  `str(error)` is one line, the server's own message first
├── KubeUnavailable        worth another try: 401, 429, 5xx, or an answer that is not valid JSON
│   └── KubeUnreachable    no answer: connection, TLS, deadline
│       └── NoCredentials  nothing to log in with
├── KubeNotFound           404: no such object, namespace or kind
├── KubeConflict           409: the object changed since it was read, or exists already
├── KubeExpired            410: the resource version is too old; a new list is needed
└── KubeRejected           any other 4xx: forbidden, invalid, too large; 500 for a body of wrong types
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slipstream_core.errors import SlipstreamError

FORBIDDEN = 403


class KubeError(SlipstreamError):
    """`status` is the HTTP status, 0 without an answer. `object_name` is the object that the server's message is about,
    where it names one; `retry_after_s` is the pause that the server asked for."""

    def __init__(
        self, message: str, *, status: int = 0, object_name: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.object_name = object_name
        self.retry_after_s = retry_after_s


class KubeUnavailable(KubeError):
    """A later try may succeed."""


class KubeUnreachable(KubeUnavailable):
    """The API server did not answer."""


class NoCredentials(KubeUnreachable):
    """The kubeconfig or the pod's service account cannot be used."""


class KubeNotFound(KubeError):
    """404."""


class KubeConflict(KubeError):
    """409."""


class KubeExpired(KubeError):
    """410."""


class KubeRejected(KubeError):
    """Any other 4xx, and 500 for a body whose types are not those of its kind."""


# Server-side apply answers 500 to a body whose types are not those of its kind; this is in its message.
_MISTYPED = "typed patch object"
_KINDS: Mapping[int, type[KubeError]] = {404: KubeNotFound, 409: KubeConflict, 410: KubeExpired}


def error_of(status: int, answer: bytes, *, call: str, retry_after: str | None = None) -> KubeError:
    """The error for an HTTP answer to `call`; `retry_after` is its header of that name."""
    try:
        details = msgspec.json.decode(answer, type=dict)
    except msgspec.DecodeError:  # such as a proxy's page
        details = {"message": " ".join(answer.decode(errors="replace").split())[:200]}
    return error_of_status(details, status, call=call, retry_after=retry_after)


def error_of_status(details: Mapping[str, Any], status: int, *, call: str, retry_after: str | None = None) -> KubeError:
    """The error for `details`, a `metav1.Status`."""
    subject = details.get("details")
    name = str(subject.get("name", "")) if isinstance(subject, Mapping) else ""
    seconds = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    reason = str(details.get("message") or "no reason given")
    is_temporary = status in (401, 429) or (status >= 500 and _MISTYPED not in reason)
    kind = KubeUnavailable if is_temporary else _KINDS.get(status, KubeRejected)
    message = f"{reason} ({call}: {status})"
    return kind(message, status=status, object_name=name, retry_after_s=seconds)
