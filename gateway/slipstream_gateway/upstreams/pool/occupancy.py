"""What a replica was doing while a request ran there: how many it shared the batch with, and how they drafted."""

from __future__ import annotations

from typing import NamedTuple


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
