"""What all clients together may make the server hold."""

from __future__ import annotations

MESSAGE_BYTES = 128
"""What a message costs besides its bytes, so that empty ones count as well."""


class Memory:
    """Counts the bytes of messages that no handler has read yet, over all connections, against a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    @property
    def is_exhausted(self) -> bool:
        return self.held_bytes > self.limit_bytes
