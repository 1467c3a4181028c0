"""The replicas of one arm: least outstanding first, and passive health.

A replica that could not be reached `FAILURES_TO_EJECT` times in a row is out for a back-off that doubles; when it is
over, one request is let through to probe it, and its success brings the replica back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from slipstream_gateway.upstreams.base import Upstream

FAILURES_TO_EJECT = 2
FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 15.0


class Occupancy(NamedTuple):
    """A replica's work up to a moment: requests in flight, and their draft lengths, each summed over time."""

    time_s: float
    request_s: float
    draft_length_s: float


class Batch(NamedTuple):
    """The company that a request had while it ran, itself included: mean requests in flight, mean draft length."""

    load: float
    draft_length: float

    @classmethod
    def between(cls, start: Occupancy, end: Occupancy, *, draft_length: int) -> Batch:
        """Over the time of a request with `draft_length`."""
        elapsed_s, request_s = end.time_s - start.time_s, end.request_s - start.request_s
        if elapsed_s <= 0.0 or request_s <= 0.0:
            return cls(1.0, float(draft_length))
        return cls(max(request_s / elapsed_s, 1.0), (end.draft_length_s - start.draft_length_s) / request_s)


class Replica:
    """One server of a pool with its load and its health."""

    def __init__(self, name: str, upstream: Upstream) -> None:
        self.name = name
        self.upstream = upstream
        self.outstanding = 0
        self.stops = 0
        self.standing_draft_lengths = 0
        self._draft_lengths = 0
        self._changed_s = 0.0
        self._request_s = 0.0
        self._draft_length_s = 0.0
        self._failures = 0
        self._out_until_s = 0.0
        self._probing = False

    @property
    def ejected(self) -> bool:
        return self._failures >= FAILURES_TO_EJECT

    def retry_after_s(self, now_s: float) -> float:
        """How long until the replica is tried again; 0 where it can be tried now."""
        return max(self._out_until_s - now_s, 0.0) if self.ejected else 0.0

    def usable(self, now_s: float) -> bool:
        """Whether a request may go there: it is up, or its back-off is over and nobody probes it yet."""
        return not self.ejected or (now_s >= self._out_until_s and not self._probing)

    def acquire(self, draft_length: int, now_s: float, *, standing: bool = False) -> Occupancy:
        """A request of `draft_length` starts here; `standing`: it would speculate whatever its neighbours do."""
        occupancy = self._occupancy(now_s)
        self.outstanding += 1
        self.standing_draft_lengths += draft_length if standing else 0
        self._draft_lengths += draft_length
        self._probing = self.ejected
        return occupancy

    def release(self, draft_length: int, now_s: float, *, standing: bool = False) -> Occupancy:
        """It is over; `Batch.between` tells what it shared the replica with. Arguments as at its start."""
        occupancy = self._occupancy(now_s)
        self.outstanding -= 1
        self.standing_draft_lengths -= draft_length if standing else 0
        self._draft_lengths -= draft_length
        self._probing = False
        return occupancy

    async def stop_drafting(self) -> None:
        """As the upstream does; `stops` counts how often, so that answers can be told that were changed by it."""
        self.stops += 1
        await self.upstream.stop_drafting()

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now_s: float) -> None:
        """A connect failure or a deadline before the first byte."""
        self._failures += 1
        if self.ejected:
            doublings = min(self._failures - FAILURES_TO_EJECT, 10)
            self._out_until_s = now_s + min(FIRST_BACKOFF_S * 2**doublings, LAST_BACKOFF_S)

    def _occupancy(self, now_s: float) -> Occupancy:
        if self.outstanding:
            elapsed_s = now_s - self._changed_s
            self._request_s += elapsed_s * self.outstanding
            self._draft_length_s += elapsed_s * self._draft_lengths
        self._changed_s = now_s
        return Occupancy(now_s, self._request_s, self._draft_length_s)


class Pool:
    """The replicas that serve one arm of one pair. `model` is the replicas' name for the model."""

    def __init__(self, replicas: Sequence[Replica], *, clock: Callable[[], float]) -> None:
        self.replicas = tuple(replicas)
        self._clock = clock
        self._turn = 0

    def pick(self, tried: Sequence[Replica] = ()) -> Replica | None:
        """The usable replica with the least work that is not in `tried`; equals take turns. None: nobody is left."""
        now_s = self._clock()
        best: Replica | None = None
        count = len(self.replicas)
        self._turn += 1
        for offset in range(count):
            replica = self.replicas[(self._turn + offset) % count]
            if replica in tried or not replica.usable(now_s):
                continue
            if best is None or replica.outstanding < best.outstanding:
                best = replica
        return best

    def least_busy(self) -> Replica | None:
        """The replica that a request could go to now with the fewest in flight. None: there is none."""
        now_s = self._clock()
        least: Replica | None = None
        for replica in self.replicas:
            if replica.usable(now_s) and (least is None or replica.outstanding < least.outstanding):
                least = replica
        return least

    def last_resort(self) -> Replica | None:
        """Where all are out: the one whose back-off ends first. None: the pool has no replicas."""
        now_s = self._clock()
        return min(self.replicas, key=lambda replica: replica.retry_after_s(now_s), default=None)

    def retry_after_s(self) -> float:
        """When the first replica may be back."""
        now_s = self._clock()
        return min((replica.retry_after_s(now_s) for replica in self.replicas), default=1.0)
