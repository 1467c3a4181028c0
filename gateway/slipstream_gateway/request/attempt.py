"""One try of a request at one replica: its place there, what it shares the replica with, and how it fared."""

from __future__ import annotations

import time

from slipstream_gateway.request.legs import Leg
from slipstream_gateway.request.lookout import Lookout
from slipstream_gateway.upstreams.base import Stream
from slipstream_gateway.upstreams.pool import Batch, Replica


class Attempt:
    """Takes its place when it is made, and gives it back with `release`, which tells its company. `lookout`, if any,
    belongs over every wait for the replica."""

    __slots__ = ("_since", "_stops", "backend", "decision", "lookout", "replica", "stream")

    def __init__(self, leg: Leg, replica: Replica, lookout: Lookout | None = None) -> None:
        self.decision = leg.decision
        self.backend = leg.backend
        self.replica = replica
        self.lookout = lookout
        self.stream: Stream | None = None
        self._stops = replica.stops
        self._since = replica.acquire(self.decision.draft_length, time.perf_counter(), standing=self.decision.standing)

    @property
    def was_stopped(self) -> bool:
        """Whether it was told half-way to go on plainly."""
        return self.decision.draft_length > 0 and self.replica.stops != self._stops

    def began(self, stream: Stream | None) -> None:
        """The first piece of `stream` is here; None: the whole answer."""
        self.stream = stream
        ttft_s = None if stream is None else time.perf_counter() - self._since.time_s
        self.replica.succeeded(time.monotonic(), speculative=self.decision.draft_length > 0, ttft_s=ttft_s)

    def completed(self) -> None:
        """Its answer came to the regular end."""
        self.replica.completed(time.monotonic(), speculative=self.decision.draft_length > 0)

    def failed(self, cause: str) -> None:
        """It failed by the server's fault, before the first byte or after it; see `Replica.failed`."""
        self.replica.failed(time.monotonic(), cause, speculative=self.decision.draft_length > 0)

    def release(self) -> Batch:
        """Gives its place back. Once only."""
        if self.lookout is not None:
            self.lookout.close()
        decision = self.decision
        until = self.replica.release(decision.draft_length, time.perf_counter(), standing=decision.standing)
        return Batch.between(self._since, until, draft_length=decision.draft_length)

    async def close(self) -> None:
        """Cancels what still runs upstream."""
        stream, self.stream = self.stream, None
        if stream is not None:
            await stream.aclose()
