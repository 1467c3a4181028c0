"""When one server is due for its next check. Pure: the caller reads the clock and draws the numbers."""

from __future__ import annotations

import math

JITTER = 0.25
LATEST = 3.0
SHORTEST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


class Schedule:
    """A server without a verdict is due at once. With one it is due `every_s` later, give or take a quarter, as soon as
    it is spare, and after three times `every_s` whatever else it does. A check that came to nothing is tried again
    after a wait that doubles."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._due_s = -math.inf
        self._latest_s = -math.inf
        self._retry_s = SHORTEST_RETRY_S

    def is_due(self, now_s: float, *, spare: bool) -> bool:
        return now_s >= self._due_s and (spare or now_s >= self._latest_s)

    def is_late(self, now_s: float) -> bool:
        """Whether the server has a verdict that is too old to wait until it is spare."""
        return -math.inf < self._latest_s <= now_s

    def concluded(self, now_s: float, draw: float) -> None:
        """There is a verdict; `draw` in [0, 1)."""
        self._due_s = now_s + self._every_s * (1.0 + JITTER * (2.0 * draw - 1.0))
        self._latest_s = now_s + LATEST * self._every_s
        self._retry_s = SHORTEST_RETRY_S

    def unanswered(self, now_s: float) -> None:
        """The check was not answered: soon again."""
        self._again(now_s, SHORTEST_RETRY_S, LONGEST_RETRY_S)

    def inconclusive(self, now_s: float) -> None:
        """The check was answered, and the server has no verdict all the same."""
        self._again(now_s, self._every_s / 10.0, self._every_s)

    def renew(self, now_s: float) -> None:
        """The verdict does not hold any more. The wait after a check that came to nothing stays: a server that cannot
        be reached counts as another one at each probe."""
        self._due_s = min(self._due_s, now_s + self._retry_s)
        self._latest_s = -math.inf

    def _again(self, now_s: float, shortest_s: float, longest_s: float) -> None:
        wait_s = min(max(self._retry_s, shortest_s), longest_s)
        self._due_s = now_s + wait_s
        self._retry_s = 2.0 * wait_s
