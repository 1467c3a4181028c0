"""The end of a call that failed."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Status codes of gRPC, as far as they are sent (grpc.github.io/grpc/core/md_doc_statuscodes.html)."""

    OK = 0
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(Exception):
    """Ends a call with `status` and a message of ASCII characters for the client."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
