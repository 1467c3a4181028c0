"""The time between SIGTERM and the drain, in which a gateway serves on and asks its clients to connect elsewhere.

Proxies hear of a pod's end some seconds after it: new connections are still accepted meanwhile. Each response has
`connection: close` (RFC 9112, 9.6), so that a client's next request goes to another gateway. A server that closes kept
connections at the signal instead loses the requests that are on their way.
"""

from __future__ import annotations

import time

import uvicorn


class Leaving:
    """Lasts `seconds` from `begin` on."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._ends_s: float | None = None

    def begin(self) -> None:
        """Starts the time. A second call has no effect."""
        if self._ends_s is None:
            self._ends_s = time.monotonic() + self._seconds

    @property
    def has_begun(self) -> bool:
        return self._ends_s is not None

    @property
    def is_over(self) -> bool:
        return self._ends_s is not None and time.monotonic() >= self._ends_s


class LeavingServer(uvicorn.Server):
    """uvicorn's server, which begins to leave at `leaving.begin()`, and drains when that time is over."""

    def __init__(self, config: uvicorn.Config, leaving: Leaving) -> None:
        super().__init__(config)
        self.leaving = leaving

    async def on_tick(self, counter: int) -> bool:
        self.should_exit = self.should_exit or self.leaving.is_over
        return await super().on_tick(counter)
