"""The load of a replica while a request ran: the batch that the request shared, and its draft lengths."""

from __future__ import annotations

from typing import NamedTuple


class Occupancy(NamedTuple):
    """Work of a replica up to a moment: requests in flight and their draft lengths, each integrated over time."""

    time_s: float
    request_s: float
    draft_length_s: float


class Batch(NamedTuple):
    """The batch that a request was part of: mean requests in flight, mean draft length, both including the request
    itself."""

    load: float
    draft_length: float

    @classmethod
    def between(cls, start: Occupancy, end: Occupancy, *, draft_length: int) -> Batch:
        """The batch during a request with `draft_length`."""
        elapsed_s, request_s = end.time_s - start.time_s, end.request_s - start.request_s
        if elapsed_s <= 0.0 or request_s <= 0.0:
            return cls(1.0, float(draft_length))
        return cls(max(request_s / elapsed_s, 1.0), (end.draft_length_s - start.draft_length_s) / request_s)
