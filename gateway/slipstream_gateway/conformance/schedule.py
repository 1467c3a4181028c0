"""The time of a server's next check. Pure: the caller supplies clock and random numbers."""

from __future__ import annotations

import math

JITTER = 0.25
LATEST = 3.0
SHORTEST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


class Schedule:
    """A server without a result is due at once. With a result it is due `every_s` later, plus or minus a quarter, as
    soon as it is spare, and after three times `every_s` in any case. An inconclusive check is repeated after a wait
    that doubles."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._due_s = -math.inf
        self._latest_s = -math.inf
        self._retry_s = SHORTEST_RETRY_S

    def is_due(self, now_s: float, *, spare: bool) -> bool:
        return now_s >= self._due_s and (spare or now_s >= self._latest_s)

    def is_late(self, now_s: float) -> bool:
        """Whether the server's result is too old to wait until the server is spare."""
        return -math.inf < self._latest_s <= now_s

    def concluded(self, now_s: float, draw: float) -> None:
        """The check had a result; `draw` in [0, 1)."""
        self._due_s = now_s + self._every_s * (1.0 + JITTER * (2.0 * draw - 1.0))
        self._latest_s = now_s + LATEST * self._every_s
        self._retry_s = SHORTEST_RETRY_S

    def unanswered(self, now_s: float) -> None:
        """The server did not respond to the check, which is repeated soon."""
        self._again(now_s, SHORTEST_RETRY_S, LONGEST_RETRY_S)

    def inconclusive(self, now_s: float) -> None:
        """The server responded to the check, but there is no result."""
        self._again(now_s, self._every_s / 10.0, self._every_s)

    def renew(self, now_s: float) -> None:
        """Invalidates the result. The wait after an inconclusive check stays, because an unreachable server counts as a
        new one at each probe."""
        self._due_s = min(self._due_s, now_s + self._retry_s)
        self._latest_s = -math.inf

    def _again(self, now_s: float, shortest_s: float, longest_s: float) -> None:
        wait_s = min(max(self._retry_s, shortest_s), longest_s)
        self._due_s = now_s + wait_s
        self._retry_s = 2.0 * wait_s
