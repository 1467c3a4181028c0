"""When work on servers may begin: checks of a server, and replays of answers. Both prefer spare servers, and both have
a time from which they no longer wait for one. Pure except for `SpareServers`, which reads the load of servers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from slipstream_gateway.admission import Admission
from slipstream_gateway.upstreams.pool import Replica


class SpareServers:
    """A server is spare if it has at most `max_outstanding` requests in flight, at two looks in a row, while no request
    waits for a place."""

    def __init__(self, admission: Admission, *, max_outstanding: int = 0) -> None:
        self._admission = admission
        self._max_outstanding = max_outstanding
        self._before: set[Replica] = set()

    def look(self, replicas: Iterable[Replica]) -> set[Replica]:
        """Looks at `replicas`. Returns those that are spare."""
        now: set[Replica] = set()
        if not self._admission.queued:
            now = {replica for replica in replicas if replica.outstanding <= self._max_outstanding}
        spare, self._before = now & self._before, now
        return spare

    def forget(self) -> None:
        """Begins with the first look again."""
        self._before.clear()


class Turn:
    """Work is due from `due_s` on a spare server, and from `latest_s` on any."""

    def __init__(self) -> None:
        self.due_s = -math.inf
        self.latest_s = -math.inf

    def is_due(self, now_s: float, *, spare: bool) -> bool:
        return now_s >= self.due_s and (spare or now_s >= self.latest_s)


RESERVED_AFTER_S = 5.0


class ReplayTurns(Turn):
    """The turns of replays, one after another. A replay waits for a spare server, but at most `reserved_after_s` after
    the one before it. So replays have a share of the servers, however busy these are. It is at most one request at a
    time, and at most the share of the answers that a policy draws (`parityShare`)."""

    def __init__(self, reserved_after_s: float = RESERVED_AFTER_S) -> None:
        super().__init__()
        self._reserved_after_s = reserved_after_s

    def ended(self, now_s: float) -> None:
        """A replay has ended, or the first one waits."""
        self.latest_s = now_s + self._reserved_after_s


JITTER = 0.25
LATEST = 3.0
SHORTEST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


class CheckTurns(Turn):
    """The turns of one server's checks. A server without a result is due at once. With a result it is due `every_s`
    later, plus or minus a quarter, as soon as it is spare, and after three times `every_s` in any case. An inconclusive
    check is repeated after a wait that doubles."""

    def __init__(self, every_s: float) -> None:
        super().__init__()
        self._every_s = every_s
        self._retry_s = SHORTEST_RETRY_S

    def is_late(self, now_s: float) -> bool:
        """Whether the server's result is too old to wait until the server is spare."""
        return -math.inf < self.latest_s <= now_s

    def concluded(self, now_s: float, draw: float) -> None:
        """The check had a result; `draw` in [0, 1)."""
        self.due_s = now_s + self._every_s * (1.0 + JITTER * (2.0 * draw - 1.0))
        self.latest_s = now_s + LATEST * self._every_s
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
        self.due_s = min(self.due_s, now_s + self._retry_s)
        self.latest_s = -math.inf

    def _again(self, now_s: float, shortest_s: float, longest_s: float) -> None:
        wait_s = min(max(self._retry_s, shortest_s), longest_s)
        self.due_s = now_s + wait_s
        self._retry_s = 2.0 * wait_s


class Pilot:
    """Lets one server of a pair take the probes at first. The others follow once a check has had findings, so that a
    probe that breaks servers runs on few of them. A check that takes longer than it may keeps no other one waiting."""

    def __init__(self) -> None:
        self._runs_until_s = -math.inf
        self._is_proven = False

    def admits(self, now_s: float) -> bool:
        return self._is_proven or now_s >= self._runs_until_s

    def begins(self, until_s: float) -> None:
        self._runs_until_s = until_s

    def ended(self, *, found: bool) -> None:
        """`found`: the check had findings, so that its probes break no server."""
        self._runs_until_s = -math.inf
        self._is_proven = found
