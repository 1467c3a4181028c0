"""One attempt of a request at one server: its slot there, the batch that it shares, and how it went."""

from __future__ import annotations

import time

from slipstream_gateway.request.candidates import Candidate
from slipstream_gateway.upstreams.base import Stream
from slipstream_gateway.upstreams.pool import Batch, Replica


class Attempt:
    """Acquires a slot on construction; `close` cancels the upstream's work and releases the slot. `batch` is the mean
    load that the attempt shared, once it is closed."""

    __slots__ = ("_released", "_since", "_stops", "backend", "batch", "decision", "replica", "stream")

    def __init__(self, candidate: Candidate) -> None:
        self.replica: Replica = candidate.replica
        self.backend = candidate.backend
        self.decision = candidate.decision
        self.stream: Stream | None = None
        self.batch = Batch(1.0, 0.0)
        self._released = False
        self._stops = self.replica.stops
        self._since = self.replica.acquire(
            self.decision.draft_length, time.perf_counter(), standing=self.decision.standing
        )

    @property
    def was_stopped(self) -> bool:
        """Whether the server was told to stop drafting while the attempt ran."""
        return self.decision.draft_length > 0 and self.replica.stops != self._stops

    def began(self, stream: Stream | None) -> None:
        """The first piece of `stream` is here; None: the whole answer."""
        self.stream = stream
        ttft_s = None if stream is None else time.perf_counter() - self._since.time_s
        self.replica.succeeded(time.monotonic(), speculative=self.decision.draft_length > 0, ttft_s=ttft_s)

    def completed(self) -> None:
        """The answer came to its regular end."""
        self.replica.completed(time.monotonic(), speculative=self.decision.draft_length > 0)

    def failed(self, cause: str) -> None:
        """The attempt failed by the server's fault, before the first byte or after it; see `Replica.failed`."""
        self.replica.failed(time.monotonic(), cause, speculative=self.decision.draft_length > 0)

    async def close(self) -> None:
        """Cancels the upstream's work if it still runs, and releases the slot. Closing twice is harmless."""
        stream, self.stream = self.stream, None
        try:
            if stream is not None:
                await stream.aclose()
        finally:
            if not self._released:
                self._released = True
                decision = self.decision
                until = self.replica.release(decision.draft_length, time.perf_counter(), standing=decision.standing)
                self.batch = Batch.between(self._since, until, draft_length=decision.draft_length)
