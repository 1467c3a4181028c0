"""The servers that must be checked according to one snapshot, with the settings of their checks, and the time of a
server's next check. Pure: the caller supplies clock and random numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_core.manifest.table import Backend

from slipstream_gateway.decide.route.guards import off
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.upstreams.pool import Replica


class Duty(NamedTuple):
    """The settings of one server's checks. `pairs` are the keys of the pairs whose speculative arm it serves; the check
    uses the sides of the first, `served`. `draft_length` is the maximum over the pairs that may speculate; it is 0 if
    none may, for the reason `off`."""

    pairs: tuple[str, ...]
    served: ServedRoute
    speculative: Backend
    draft_length: int
    off: str | None

    @property
    def sides(self) -> tuple[Backend, Backend]:
        """The identity of a result: if it changes, the server is checked again."""
        return self.speculative, self.served.route.plain


def duties_of(snapshot: Snapshot) -> dict[Replica, Duty]:
    """The duty of each server of a speculative arm."""
    found: dict[Replica, Duty] = {}
    for served in snapshot.served:
        pool, speculative = served.speculative, served.route.speculative
        if pool is None or speculative is None:
            continue
        why = _why_off(served, snapshot)
        draft_length = 0 if why is not None else served.route.pair.spec.max_draft_tokens
        duty = Duty((served.route.pair.metadata.key,), served, speculative, draft_length, why)
        for replica in pool.replicas:
            found[replica] = _joined(found[replica], duty) if replica in found else duty
    return found


def _why_off(served: ServedRoute, snapshot: Snapshot) -> str | None:
    verdict = off(served.route)
    if verdict is not None:
        return verdict.detail
    key = served.route.pair.metadata.key
    return f"the kill switch of ModelPair/{key} is on" if key in snapshot.killed else None


def _joined(one: Duty, other: Duty) -> Duty:
    """The duty of a server that serves the pairs of both."""
    is_on = one.off is None or other.off is None
    return one._replace(
        pairs=one.pairs + other.pairs,
        draft_length=max(one.draft_length, other.draft_length),
        off=None if is_on else one.off,
    )


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
